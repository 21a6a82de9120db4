"""Stand-ins for published modules in real runs: each loop and context, two turns, against a strict server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.plans import module_folder

PROVIDER = '''
"""Builds what it sends from `tool_calls` of the messages, as many published providers do."""
__amplifier_module_type__ = "provider"

import asyncio
import json
import urllib.request

from amplifier_core import ChatResponse, ProviderInfo, TextBlock, ToolCallBlock
from amplifier_core.message_models import ToolCall


def wire(message):
    message = message.model_dump()
    content = message["content"]
    if isinstance(content, list):
        content = "".join(b["text"] for b in content if b["type"] == "text") or None
    sent = {"role": message["role"], "content": content}
    if message["role"] == "tool":
        sent["tool_call_id"] = message["tool_call_id"]
    if message.get("tool_calls"):
        sent["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["tool"], "arguments": json.dumps(call["arguments"])},
            }
            for call in message["tool_calls"]
        ]
    return sent


class Listed:
    name = "listed"

    def __init__(self, config):
        self.config = config

    def get_info(self):
        return ProviderInfo(id="listed", display_name="Listed")

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        return await asyncio.to_thread(self.post, request)

    def post(self, request):
        tools = [
            {"type": "function", "function": {"name": t.name, "parameters": t.parameters}}
            for t in request.tools or ()
        ]
        messages = [wire(message) for message in request.messages]
        body = {"model": "gpt-4o", "messages": messages, "tools": tools}
        asked = urllib.request.Request(
            self.config["base_url"] + "/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer k"},
        )
        with urllib.request.urlopen(asked) as answer:
            message = json.load(answer)["choices"][0]["message"]
        calls = [
            ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls") or ()
        ]
        blocks = [ToolCallBlock(id=c.id, name=c.name, input=c.arguments) for c in calls]
        text = message.get("content")
        return ChatResponse(
            content=[*([TextBlock(text=text)] if text else []), *blocks], tool_calls=calls or None
        )

    def parse_tool_calls(self, response):
        return response.tool_calls or []


async def mount(coordinator, config=None):
    await coordinator.mount("providers", Listed(config), name="listed")
'''

HOOK = '''
"""Serialises every event, and shortens results as plain data."""
__amplifier_module_type__ = "hook"

import copy
import json

from amplifier_core.models import HookResult

NAMES = ("tool:pre", "tool:post", "provider:request", "provider:response", "message.end")


async def mount(coordinator, config=None):
    def handle(event, data):
        with open(config["path"], "a") as log:
            log.write(json.dumps([event, data]) + chr(10))
        if event == "tool:post" and data["result"].success and isinstance(data["result"], dict):
            data = copy.deepcopy(data)
            data["result"]["output"] = "shortened"
            return HookResult(action="modify", data=data)

    for name in NAMES:
        coordinator.hooks.register(name, handle, name="recorder")
'''


@pytest.mark.parametrize(
    ("loop", "context"),
    [
        ("loop-basic", "context-simple"),
        ("loop-streaming", "context-persistent"),
        ("loop-events", "context-simple"),
        pytest.param("loop-basic", "context-persistent", marks=pytest.mark.thorough),
        pytest.param("loop-streaming", "context-simple", marks=pytest.mark.thorough),
        pytest.param("loop-events", "context-persistent", marks=pytest.mark.thorough),
    ],
)
def test_a_session_of_published_parts_goes_on_after_a_resume(
    tmp_path: Path, loop: str, context: str
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "f.txt").write_text("a long file")
    log = tmp_path / "events.jsonl"
    reading: list[Any] = [ToolCall("read_file", {"file_path": "f.txt"})]
    script = [Reply(tool_calls=reading), "one", Reply(tool_calls=reading), "two"]
    with ScriptedLLM.running(script) as server:
        plan = {
            "name": "published",
            "session": {"orchestrator": loop, "context": context},
            "providers": [
                {
                    "module": "provider-listed",
                    "source": str(module_folder(tmp_path, PROVIDER, "amplifier_module_listed")),
                    "config": {"base_url": server.openai_base_url},
                }
            ],
            "tools": [{"module": "tool-filesystem"}],
            "hooks": [
                {
                    "module": "hooks-recorder",
                    "source": str(module_folder(tmp_path, HOOK, "amplifier_module_recorder")),
                    "config": {"path": str(log)},
                }
            ],
        }
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump(plan))
        first = run_amplifier("run", "-f", path, "--session", "s1", "read it", cwd=folder)
        assert (first.code, first.stdout) == (0, "one\n"), first.stderr
        second = run_amplifier("run", "--resume", "s1", "again", cwd=folder)
        assert (second.code, second.stdout) == (0, "two\n"), second.stderr

        assert server.rejections == []
        asked = server.requests[-1].body["messages"]
    assert [message["role"] for message in asked if message["role"] != "system"] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool"),
    ]
    results = [message["content"] for message in asked if message["role"] == "tool"]
    assert results == ["shortened", "shortened"]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    named = [name for name, _ in events]
    assert (named.count("tool:post"), named.count("message.end")) == (2, 2)
    saved = (first.home / "sessions" / "s1" / "transcript.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in saved]
    calls = [call for record in stored for call in record.get("tool_calls", ())]
    assert [(call["tool"], call["arguments"]) for call in calls] == [
        ("read_file", {"file_path": "f.txt"})
    ] * 2


LOOP = '''
"""Answers with the error of a provider instead of raising it."""
__amplifier_module_type__ = "orchestrator"

from amplifier_core import ChatRequest, Message, TextBlock


class Answering:
    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        request = ChatRequest(messages=[Message(role="user", content=prompt)])
        try:
            answer = (await providers["mock"].complete(request)).content[0].text
        except Exception as error:
            await hooks.emit("error:provider", {"error_message": str(error)})
            answer = f"Error getting response: {error}"
        if "blocks" in prompt:
            answer = [TextBlock(text="so far")]
        await hooks.emit("orchestrator:complete", {"turn_count": 1, "status": "success"})
        return answer


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Answering())
'''


def run_answering(folder: Path, reply: Any, *options: str, hooks: Any = ()) -> tuple[int, Any]:
    """Run a plan with this loop; return the exit code and the result."""
    plan = {
        "session": {
            "orchestrator": {
                "module": "loop-answering",
                "source": str(module_folder(folder, LOOP, "amplifier_module_answering")),
            },
            "context": "context-simple",
        },
        "providers": [{"module": "provider-mock", "config": {"replies": [reply]}}],
        "hooks": list(hooks),
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    done = run_amplifier("run", "-f", path, "--output", "json", *options, cwd=folder)
    return done.code, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("error", "code"),
    [("InvalidRequestError", 5), ("AuthenticationError", 4), ("RateLimitError", 75)],
)
def test_an_error_that_a_loop_gives_as_its_answer_is_an_error_of_the_run(
    tmp_path: Path, error: str, code: int
) -> None:
    reply = {"error": {"type": error, "message": "too odd"}}
    ended, result = run_answering(tmp_path, reply, "go")
    assert (ended, result["response"]) == (code, "")
    assert "too odd" in result["error"]["message"]


def test_secrets_are_redacted_in_the_answer_of_any_loop(tmp_path: Path) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLX"
    _, result = run_answering(
        tmp_path, f"It is {key}.", "go", hooks=[{"module": "hooks-redaction"}]
    )
    assert result["response"] == "It is [REDACTED:aws-access-token]."


def test_a_loop_may_answer_with_the_blocks_of_the_model(tmp_path: Path) -> None:
    code, result = run_answering(tmp_path, "never used", "as blocks")
    assert (code, result["response"]) == (0, "so far")
