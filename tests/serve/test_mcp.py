"""A plan served as MCP tools: the client of the protocol's SDK, in each era."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.support.cli import amplifier_command, child_environment, start_amplifier
from tests.support.plans import held_plan, mock_plan
from tests.support.processes import processes_in
from tests.support.waiting import eventually
from tests.support.warm_program import script_command

ERAS = ["auto", "legacy"]
"""How the client connects: the newest version that the server has, or with `initialize`."""
GUARDED: dict[str, Any] = {"tools": ["tool-bash"], "hooks": ["hooks-approval"]}


@contextlib.asynccontextmanager
async def connected(
    folder: Path, plan: Path, mode: str = "auto", *options: str, **client: Any
) -> AsyncGenerator[Client]:
    [program] = amplifier_command()
    command, *arguments = script_command(Path(program), "serve", "mcp", "-f", str(plan), *options)
    environment = child_environment(folder / "home")
    parameters = StdioServerParameters(
        command=command, args=arguments, cwd=str(folder), env=environment
    )
    async with Client(parameters, mode=mode, **client) as session:
        yield session


def as_lines(*messages: dict[str, Any]) -> bytes:
    lines = [json.dumps({"jsonrpc": "2.0", **message}) for message in messages]
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize("mode", ERAS)
async def test_the_plan_and_its_agents_are_tools(tmp_path: Path, mode: str) -> None:
    agents = {"helper": {"description": "Helps a lot.", "instruction": "You help."}}
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"}, agents=agents)
    async with connected(tmp_path, plan, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["test", "helper"]
        assert "Helps a lot." in str(tools["helper"].description)
        assert str(tmp_path) in str(client.instructions)
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        for name in tools:
            first = await client.call_tool(name, {"prompt": "hello"})
            assert not first.is_error
            assert first.structured_content["response"] == "You said: hello"
            id = first.structured_content["session_id"]
            second = await client.call_tool(name, {"prompt": "again", "session_id": id})
            assert second.structured_content["session_id"] == id
            assert second.structured_content["response"] == "You said: again"


@pytest.mark.parametrize(
    ("mode", "answer"),
    [("auto", "allow"), ("legacy", "allow"), ("auto", "deny"), ("legacy", "decline")],
)
async def test_an_approval_reaches_the_caller(tmp_path: Path, mode: str, answer: str) -> None:
    commands = ("touch x", "echo > y")
    calls = [{"name": "bash", "input": {"command": command}} for command in commands]
    plan = mock_plan(tmp_path, [{"tool_calls": [call]} for call in calls] + ["done"], **GUARDED)
    questions: list[str] = []

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(params.message)
        if answer == "decline":
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"answer": answer})

    async with connected(tmp_path, plan, mode, elicitation_callback=elicit) as client:
        result = await client.call_tool("test", {"prompt": "touch them"})
    assert len(questions) == 2
    assert "touch x" in questions[0]
    assert questions[1].count("it redirects input or output") == 1
    assert (tmp_path / "x").exists() == (tmp_path / "y").exists() == (answer == "allow")
    expected = "ok" if answer == "allow" else "denied"
    assert result.structured_content["outcome"] == expected


async def test_a_caller_that_cannot_answer_is_denied(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "touch x"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], **GUARDED)
    async with connected(tmp_path, plan) as client:
        result = await client.call_tool("test", {"prompt": "touch it"})
    assert result.is_error
    assert result.structured_content["outcome"] == "denied"
    assert not (tmp_path / "x").exists()


async def test_tool_calls_are_progress(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "echo hello"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"])
    messages: list[str | None] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)

    async with connected(tmp_path, plan) as client:
        await client.call_tool("test", {"prompt": "go"}, progress_callback=report)
    assert messages == ["echo hello"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_ends_its_command(tmp_path: Path, mode: str) -> None:
    (tmp_path / "work").mkdir()
    call = {"name": "bash", "input": {"command": "cd work; touch begun; sleep 300"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"])
    async with connected(tmp_path, plan, mode) as client:
        running = asyncio.create_task(client.call_tool("test", {"prompt": "sleep"}))
        await eventually((tmp_path / "work" / "begun").exists)
        running.cancel()
        await eventually(lambda: not processes_in(tmp_path / "work"))
        assert (await client.list_tools()).tools


async def test_calls_run_at_the_same_time(tmp_path: Path) -> None:
    plan = held_plan(tmp_path, ["first", "second"], held=())
    async with connected(tmp_path, plan) as client:
        calls = [client.call_tool("test", {"prompt": f"number {n}"}) for n in range(4)]
        results = await asyncio.gather(*calls)
    assert len({result.structured_content["session_id"] for result in results}) == 4


INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, "'prompt' must be a text"),
    ({"prompt": "x", "session_id": "../x"}, "no session"),
    ({"prompt": "x", "session_id": 7}, "no session"),
]


async def test_invalid_calls_are_refused_so_that_the_model_can_correct_them(tmp_path: Path) -> None:
    async with connected(tmp_path, mock_plan(tmp_path, ["fine"])) as client:
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("nothing", {"prompt": "x"})
        for arguments, message in INVALID:
            result = await client.call_tool("test", arguments)
            assert (result.is_error, message in str(result.content)) == (True, True)


async def test_sessions_of_other_directories_are_not_continued(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "home").symlink_to(tmp_path)
    async with connected(here, plan) as client:
        result = await client.call_tool("test", {"prompt": "a secret"})
    id = result.structured_content["session_id"]
    async with connected(there, plan) as client:
        result = await client.call_tool("test", {"prompt": "what was it?", "session_id": id})
        assert (result.is_error, "no session" in str(result.content)) == (True, True)


async def test_errors_of_a_provider_are_results(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"error": {"type": "RateLimitError", "message": "slow down"}}])
    async with connected(tmp_path, plan) as client:
        result = await client.call_tool("test", {"prompt": "x"})
    assert result.is_error
    assert result.structured_content["outcome"] == "unavailable"
    assert "slow down" in result.structured_content["error"]
    text = result.content[0]
    assert isinstance(text, types.TextContent)
    assert text.text.endswith(f"session_id: {result.structured_content['session_id']}")


@pytest.mark.parametrize("ending", ["cancelled", "disconnected"])
def test_a_call_that_waits_for_approval_ends_without_an_answer(tmp_path: Path, ending: str) -> None:
    call = {"name": "bash", "input": {"command": "touch x"}}
    process = start_amplifier(
        *("serve", "mcp", "-f", mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], **GUARDED)),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    client = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}
    call_tool = {"name": "test", "arguments": {"prompt": "touch it"}}
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(
        as_lines({"id": 1, "method": "initialize", "params": client})
        + as_lines({"id": 2, "method": "tools/call", "params": call_tool})
    )
    process.stdin.flush()
    _, question = (json.loads(process.stdout.readline()) for _ in range(2))
    assert question["method"] == "elicitation/create"
    rest = b""
    if ending == "cancelled":
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": 2}}
        process.stdin.write(as_lines(cancelled))
        process.stdin.flush()
        withdrawn = json.loads(process.stdout.readline())
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == question["id"]
        rest = as_lines({"id": 3, "method": "ping"})
    written, _ = process.communicate(rest, timeout=60)
    assert [json.loads(line).get("id") for line in written.splitlines()] == [3] * bool(rest)
    assert not (tmp_path / "x").exists()


def test_an_unknown_version_and_a_late_answer_are_refused(tmp_path: Path) -> None:
    process = start_amplifier(
        *("serve", "mcp", "-f", mock_plan(tmp_path, ["fine"])),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    meta = {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}
    messages = [
        {"id": 1, "method": "tools/list", "params": {"_meta": meta}},
        {"id": 2, "method": "tools/call", "params": {"name": "test", "requestState": "old"}},
        {"id": 3, "method": "ping"},
        {"id": 4, "method": "resources/list"},
    ]
    written, _ = process.communicate(as_lines(*messages), timeout=60)
    answers = {answer["id"]: answer for answer in map(json.loads, written.splitlines())}
    assert process.returncode == 0
    assert answers[1]["error"]["code"] == -32022
    assert answers[1]["error"]["data"]["supported"][0] == "2026-07-28"
    assert "the call has ended" in answers[2]["error"]["message"]
    assert answers[3]["result"] == {}
    assert answers[4]["error"]["code"] == -32601
