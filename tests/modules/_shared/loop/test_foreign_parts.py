"""Contexts, providers, tools and hooks written to other conventions than ours."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_core.models import HookResult
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.schema import InputChecker
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool, shout


class Answers:
    """A provider of given answers without `parse_tool_calls`."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []

    async def complete(self, request: Any) -> Any:
        self.requests.append(request)
        return self.answers.pop(0)


async def test_a_context_of_the_older_protocol_is_asked_for_all_messages(rig: Rig) -> None:
    """Context & Orchestrator Specification: there is only `get_messages`."""
    stored: list[dict[str, Any]] = []

    class Old:
        def add_message(self, message: dict[str, Any]) -> None:
            stored.append(message)

        def get_messages(self) -> list[dict[str, Any]]:
            return stored

    provider = rig.replies("ok")
    rig.context = Old()  # type: ignore[assignment]

    assert await rig.run("hi") == "ok"
    assert [m.content for m in provider.requests[0].messages] == ["hi"]
    assert [m["role"] for m in stored] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([SimpleNamespace(type="text", text="an object")], "an object"),
        (["bare ", "strings"], "bare strings"),
        ([SimpleNamespace(type="odd")], ""),
        ("", ""),
        (None, ""),
    ],
)
async def test_content_in_any_form_is_read(rig: Rig, content: Any, text: str) -> None:
    rig.providers["answers"] = Answers(SimpleNamespace(content=content))
    assert await rig.run() == text


FUNCTION = {"name": "echo", "arguments": '{"text": "a"}'}


@pytest.mark.parametrize(
    "asks",
    [
        {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}]},
        {"content": [{"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "a"}}]},
    ],
    ids=["chat completions", "messages"],
)
async def test_calls_in_the_form_of_either_vendor_are_read(rig: Rig, asks: Any) -> None:
    tool = rig.add_tool(echo_tool())
    rig.providers["answers"] = Answers(asks, {"content": "done"})

    assert await rig.run() == "done"
    assert tool.inputs == [{"text": "a"}]


async def test_parse_tool_calls_may_be_asynchronous(rig: Rig) -> None:
    tool = rig.add_tool(echo_tool())
    rig.replies("asks", "done")
    answers: list[list[Any]] = [[{"id": "c1", "name": "echo", "input": {"text": "a"}}], []]

    async def parse(response: Any) -> list[Any]:
        return answers.pop(0)

    rig.providers["mock"].parse_tool_calls = parse

    assert await rig.run() == "done"
    assert tool.inputs == [{"text": "a"}]


async def test_calls_are_read_from_the_answer_if_parse_tool_calls_returns_none(rig: Rig) -> None:
    tool = rig.add_tool(echo_tool())
    rig.replies(calls(call(text="a")), "done")
    rig.providers["mock"].parse_tool_calls = lambda response: None

    assert await rig.run() == "done"
    assert tool.inputs == [{"text": "a"}]


async def test_a_note_joins_a_tool_result_made_of_blocks(rig: Rig) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    }

    async def look(_: dict[str, Any]) -> dict[str, Any]:
        return {"success": True, "content": [{"type": "text", "text": "see"}, image]}

    rig.add_tool(FunctionTool("look", look))
    provider = rig.replies(calls(call("look")), "done")
    rig.on(
        "tool:post",
        HookResult(
            action="inject_context",
            context_injection="note",
            ephemeral=True,
            append_to_last_tool_result=True,
        ),
    )

    await rig.run()

    sent = provider.requests[1].messages[-1].content
    assert [block.type for block in sent] == ["text", "image", "text"]
    assert sent[-1].text == "note"


async def test_a_coordinator_that_stores_and_gives_the_result_back_whole_is_understood(
    rig: Rig,
) -> None:
    """Older kernels return an injection unchanged after storing it: it must not be stored twice."""
    provider = rig.replies("ok")
    kernel = rig.coordinator.process_hook_result

    async def older(result: HookResult, event: str, hook_name: str = "unknown") -> HookResult:
        await kernel(result, event, hook_name)
        return result

    rig.coordinator.process_hook_result = older  # type: ignore[method-assign]
    rig.on("prompt:submit", HookResult(action="inject_context", context_injection="once"))

    await rig.run("hi")

    assert [m["content"] for m in rig.context.messages[:-1]] == ["once", "hi"]
    assert str(provider.requests[0].messages).count("once") == 1


async def test_without_anybody_to_show_it_to_a_hooks_message_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.replies("never")
    rig.on("prompt:submit", HookResult(action="deny", reason="no", user_message="see the rules"))
    with caplog.at_level(logging.INFO):
        assert await rig.run(alone=True) == "Denied: no"
    assert "see the rules" in caplog.text


async def test_output_that_refers_to_itself_is_still_answered(rig: Rig) -> None:
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = loop

    async def knot(_: dict[str, Any]) -> dict[str, Any]:
        return loop

    rig.add_tool(FunctionTool("knot", knot))
    rig.replies(calls(call("knot", id="c1")), "done")

    assert await rig.run() == "done"
    text = rig.context.results()["c1"]
    assert text.startswith("{'a': 1, 'self': {")
    assert "{...}" in text


async def test_output_that_is_nested_too_deeply_is_still_answered(rig: Rig) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]

    async def nested(_: dict[str, Any]) -> list[Any]:
        return deep

    rig.add_tool(FunctionTool("nested", nested))
    rig.replies(calls(call("nested", id="c1")), "done")

    assert await rig.run() == "done"
    assert "<list nested too deeply>" in rig.context.results()["c1"]


async def test_when_a_question_about_a_result_fails_every_call_is_answered(rig: Rig) -> None:
    """The tool has run, what a hook wanted done with its result failed."""

    class Gone:
        async def request_approval(self, *_: Any) -> str:
            raise ConnectionError("terminal gone")

    rig.with_people(Gone())
    rig.add_tool(FunctionTool("echo", shout))
    rig.replies(calls(call(id="a", text="x"), call(id="b", text="y")), "never")
    rig.on("tool:post", HookResult(action="ask_user"))

    with pytest.raises(ConnectionError, match="terminal gone"):
        await rig.run()

    assert rig.context.results() == dict.fromkeys(
        "ab", "Error: interrupted (it may have taken effect)"
    )
    assert rig.last("orchestrator:complete")["status"] == "error"


def test_debug_logs_the_steps_of_the_loop(rig: Rig) -> None:
    log = logging.getLogger("amplifier_modules._shared.loop")
    before = log.level
    try:
        rig.kind(LoopConfig(debug=True))
        assert log.level == logging.DEBUG
    finally:
        log.setLevel(before)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1, True, "a"]},
        {"const": 1},
        {"type": []},
        {"type": "text"},
        {"properties": [1]},
        {"required": "x"},
        {"enum": "abc"},
        {"anyOf": []},
        {"items": False},
        {"properties": {"x": {"prefixItems": [True], "items": {"type": "string"}}}},
        {"patternProperties": {"^x": True}, "additionalProperties": False},
        {"properties": {"x": {"minimum": "0"}}},
        {"properties": {"x": {"pattern": "("}}},
        {"properties": {"x": {"$schema": 7}}},
    ],
)
def test_an_unusual_schema_never_stops_a_turn(schema: dict[str, Any]) -> None:
    said = InputChecker().problem(SimpleNamespace(input_schema=schema), "odd", {"x": ["a", "b"]})
    assert said is None or isinstance(said, str)
