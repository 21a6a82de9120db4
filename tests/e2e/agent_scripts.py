"""A scripted server with separate answers for each agent, and plans for it."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.llm_server import Item, Reply, Request, ScriptedLLM, ToolCall

KEY: dict[str, str | None] = {"ANTHROPIC_API_KEY": "test-key"}
"""Environment variables for the program."""

LEAD = "lead"
"""The main agent: the plan itself."""


def agent_scripts(lines: Mapping[str, Sequence[Item]]) -> Callable[[Request], Awaitable[Any]]:
    """One script for the conversation of each agent.

    The instruction identifies the agent (`called`), and the number of answers so far selects the
    next line; a resumed conversation continues its script.
    """

    async def answer(request: Request) -> Any:
        instruction = json.dumps(request.body.get("system"))
        name = next(name for name in lines if called(name) in instruction)
        answers = sum(message["role"] == "assistant" for message in request.body["messages"])
        line = lines[name][answers]
        reply: Any = line(request) if callable(line) else line
        return await reply if inspect.isawaitable(reply) else reply

    return answer


def simultaneous(parties: int) -> Callable[[Item], Item]:
    """Makes answers that are sent once the given number of requests wait for them."""
    barrier = asyncio.Barrier(parties)

    def line(reply: Item) -> Item:
        async def wait(_: Request) -> Any:
            async with asyncio.timeout(30):
                await barrier.wait()
            return reply

        return wait

    return line


@contextmanager
def running_agents(lines: Mapping[str, Sequence[Item]]) -> Iterator[ScriptedLLM]:
    """The server, ready for requests of all agents."""
    with ScriptedLLM.running([agent_scripts(lines)] * 200) as server:
        yield server


def called(name: str) -> str:
    """The instruction of an agent, and its system prompt."""
    return f"You are {name}."


def task(agent: str, instruction: str = "work", **more: Any) -> ToolCall:
    """A tool call that delegates a task."""
    return ToolCall("task", {"agent": agent, "instruction": instruction, **more})


def tasks(*agents: str) -> Reply:
    """An answer that delegates a task to each of these agents."""
    return Reply(tool_calls=[task(agent) for agent in agents])


def plan_of(
    folder: Path,
    server: ScriptedLLM,
    agents: Mapping[str, Mapping[str, Any]],
    *,
    config: Mapping[str, Any] = {},
    **more: Any,
) -> Path:
    """A plan file: the main agent with file, shell and task tools, and its agents."""
    provider = {"base_url": server.base_url, "max_retries": 0, "list_prices": True}
    session = {
        "orchestrator": "loop-streaming",
        "context": "context-simple",
        **more.pop("session", {}),
    }
    plan = {
        "name": "agents",
        "instruction": called(LEAD),
        "session": session,
        "providers": [{"module": "provider-anthropic", "config": provider}],
        "tools": [
            "tool-filesystem",
            "tool-bash",
            {"module": "tool-task", "config": dict(config)},
        ],
        "hooks": ["hooks-logging"],
        "agents": {
            name: {"description": f"Is {name}", "instruction": called(name), **agent}
            for name, agent in agents.items()
        },
        **more,
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    return path


def requests_of(server: ScriptedLLM, name: str) -> list[Any]:
    """The bodies of the requests of one agent."""
    return [
        request.body
        for request in server.completions
        if called(name) in json.dumps(request.body.get("system"))
    ]
