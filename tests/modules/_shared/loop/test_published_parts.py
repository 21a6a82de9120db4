"""Stand-ins that behave like the families of published modules, with each loop and each context."""

import copy
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_core._foreign import find_origin
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
)
from amplifier_core.models import HookResult, ToolResult
from amplifier_modules import context_persistent, context_simple
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool

THOUGHT = ThinkingBlock(thinking="hm", signature="sig==")


class ListedCallsProvider:
    """Builds what it sends from `tool_calls` and `thinking_block` of messages, never from blocks."""

    name = "listed"

    def __init__(self, *responses: ChatResponse) -> None:
        self.responses = list(responses)
        self.sent: list[list[dict[str, Any]]] = []

    async def complete(self, request: ChatRequest, **_: Any) -> ChatResponse:
        self.sent.append([_sent(m.model_dump()) for m in request.messages])
        open_calls: list[str] = []
        for message in self.sent[-1]:
            if message["role"] == "tool":
                open_calls.remove(message["id"])
            else:
                assert not open_calls, "a call without its result"
                open_calls = [entry["id"] for entry in message.get("calls", ())]
        assert not open_calls
        return self.responses.pop(0)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    role = message["role"]
    if role == "tool":
        return {"role": role, "id": message["tool_call_id"], "content": message["content"]}
    if role != "assistant":
        return {"role": role, "content": message["content"]}
    listed = [
        {"id": entry["id"], "name": entry["tool"], "input": entry["arguments"]}
        for entry in message.get("tool_calls") or ()
    ]
    thinking = message.get("thinking_block")
    thought = {} if thinking is None else {"thought": (thinking["thinking"], thinking["signature"])}
    return {"role": role, **({"calls": listed} if listed else {}), **thought}


def asks(call_id: str, text: str) -> ChatResponse:
    return ChatResponse(
        content=[THOUGHT, ToolCallBlock(id=call_id, name="echo", input={"text": text})],
        tool_calls=[ToolCall(id=call_id, name="echo", arguments={"text": text})],
    )


def says(text: str) -> ChatResponse:
    return ChatResponse(content=[TextBlock(text=text)])


@pytest.fixture(params=["simple", "persistent"])
async def new_context(
    request: pytest.FixtureRequest, rig: Rig, tmp_path: Path
) -> AsyncIterator[Callable[[], Any]]:
    """Mounts a context of the kind; each call a new one."""
    cleanups: list[Any] = []

    async def mounted() -> Any:
        if request.param == "simple":
            cleanups.append(await context_simple.mount(rig.coordinator, {}))
        else:
            folder = tmp_path / str(len(cleanups))
            config = {"path": str(folder / "messages.jsonl")}
            cleanups.append(await context_persistent.mount(rig.coordinator, config))
        return rig.coordinator.get("context")

    yield mounted
    for cleanup in filter(callable, cleanups):
        done = cleanup()
        if done is not None:
            await done


async def test_a_provider_that_reads_listed_calls_works_over_two_turns_and_a_resume(
    rig: Rig, new_context: Callable[[], Any]
) -> None:
    rig.add_tool(echo_tool())
    rig.context = await new_context()
    provider = ListedCallsProvider(asks("c1", "a"), says("one"), asks("c2", "b"), says("two"))
    rig.providers["listed"] = provider

    assert await rig.run("first") == "one"
    saved = json.loads(json.dumps(await rig.context.get_messages()))
    rig.context = await new_context()
    await rig.context.set_messages(saved)
    assert await rig.run("second") == "two"

    turn = [
        {"role": "user", "content": "first"},
        {
            "role": "assistant",
            "calls": [{"id": "c1", "name": "echo", "input": {"text": "a"}}],
            "thought": ("hm", "sig=="),
        },
        {"role": "tool", "id": "c1", "content": "A"},
    ]
    assert provider.sent[1] == turn
    assert provider.sent[3][:3] == turn
    assert provider.sent[3][-1] == {"role": "tool", "id": "c2", "content": "B"}


async def test_sessions_saved_in_either_form_alone_go_on(
    rig: Rig, new_context: Callable[[], Any]
) -> None:
    function = {"name": "echo", "arguments": '{"text": "a"}'}
    by_list = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "l", "function": function}],
    }
    block = {"type": "tool_call", "id": "b", "name": "echo", "input": {"text": "a"}}
    results = [{"role": "tool", "tool_call_id": i, "content": "A"} for i in ("l", "b")]
    user = {"role": "user", "content": "go"}
    rig.context = await new_context()
    await rig.context.set_messages(
        [user, by_list, results[0], {"role": "assistant", "content": [block]}, results[1]]
    )
    provider = rig.providers["listed"] = ListedCallsProvider(says("done"))

    assert await rig.run("on") == "done"

    asked = [message["calls"] for message in provider.sent[0] if "calls" in message]
    call_input = {"name": "echo", "input": {"text": "a"}}
    assert asked == [[{"id": "l", **call_input}], [{"id": "b", **call_input}]]


async def test_every_event_can_be_serialised_and_read_by_key_and_by_attribute(rig: Rig) -> None:
    rig.add_tool(FunctionTool("look", _looks))
    rig.providers["typed"] = ListedCallsProvider(
        ChatResponse(
            content=[ToolCallBlock(id="c1", name="look", input={})],
            tool_calls=[ToolCall(id="c1", name="look", arguments={})],
        ),
        says("done"),
    )
    seen: list[Any] = []

    def post(data: dict[str, Any]) -> None:
        for key in ("result", "tool_result"):
            result = data[key]
            assert isinstance(result, dict)
            assert result.success is result["success"] is True  # type: ignore[attr-defined]
            assert result.output == result["output"]  # type: ignore[attr-defined]
            assert "found" in result.get_serialized_output()  # type: ignore[attr-defined]
        seen.append(data["result"])

    def response(data: dict[str, Any]) -> None:
        answer = data["response"]
        assert isinstance(answer, dict)
        assert answer.content[0].type == answer["content"][0]["type"]  # type: ignore[attr-defined]
        seen.append(answer)

    rig.on("tool:post", post)
    rig.on("provider:response", response)
    await rig.run()

    assert len(seen) == 3
    assert [name for name, data in rig.events if not json.dumps(data)] == []
    assert "message.end" in rig.names()


async def _looks(input: dict[str, Any]) -> ToolResult:
    return ToolResult(output={"found": Path("a/b"), "lines": 3})


def _changed_copy(data: dict[str, Any]) -> dict[str, Any]:
    data = copy.deepcopy(data)
    data["result"]["output"]["stdout"] = "short"
    return data


def _changed_in_place(data: dict[str, Any]) -> dict[str, Any]:
    data["result"].output["stdout"] = "short"
    return data


REWRITES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a changed deep copy": _changed_copy,
    "changed in place": _changed_in_place,
    "only an output": lambda data: {**data, "result": {"output": {"stdout": "short"}}},
    "under the other key": lambda data: {**data, "tool_result": {"output": {"stdout": "short"}}},
    "a ToolResult": lambda data: {**data, "result": ToolResult(output={"stdout": "short"})},
    "a text": lambda data: {**data, "result": '{"stdout": "short"}'},
    "a plain dict": lambda data: {"result": {"success": True, "output": {"stdout": "short"}}},
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
async def test_a_hook_that_rewrites_a_result_changes_what_the_model_gets(
    rig: Rig, rewrite: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    async def run(input: dict[str, Any]) -> ToolResult:
        return ToolResult(output={"stdout": "long " * 100})

    rig.add_tool(FunctionTool("bash", run))
    rig.replies(calls(call("bash", id="c1")), "done")
    rig.on("tool:post", lambda data: HookResult(action="modify", data=rewrite(data)))

    await rig.run()

    assert json.loads(rig.context.results()["c1"]) == {"stdout": "short"}


async def test_a_result_no_hook_can_mean_is_ignored_with_a_warning(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.add_tool(echo_tool())
    rig.replies(calls(call(id="c1", text="a")), "done")
    wrong = {"result": {"success": "perhaps", "output": "b"}}
    rig.on("tool:post", HookResult(action="modify", data=wrong))

    assert await rig.run() == "done"

    assert rig.context.results() == {"c1": "A"}
    assert "Ignored a tool result changed by a hook on tool:post: success" in caplog.text


async def test_a_hook_may_fail_a_result_with_a_text_as_its_error(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.replies(calls(call(id="c1", text="a")), "done")
    wrong = {"result": {"success": False, "output": None, "error": "not this one"}}
    rig.on("tool:post", HookResult(action="modify", data=wrong))

    await rig.run()

    assert rig.context.results() == {"c1": "Error: not this one"}
    assert rig.context.messages[2]["is_error"] is True


async def test_a_response_rewritten_as_plain_data_is_stored_as_rewritten(rig: Rig) -> None:
    rig.providers["typed"] = ListedCallsProvider(says("the secret"))

    def redact(data: dict[str, Any]) -> HookResult:
        data["response"]["content"][0]["text"] = "[redacted]"
        return HookResult(action="modify", data=data)

    rig.on("provider:response", redact)

    assert await rig.run() == "[redacted]"
    assert rig.context.messages[-1]["content"] == [{"type": "text", "text": "[redacted]"}]


# --- foreign code that fails ------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "said"), [(None, "None"), ("hello", "a value of type str")])
async def test_an_answer_that_is_no_response_is_an_error_of_the_provider(
    rig: Rig, answer: Any, said: str
) -> None:
    rig.providers["acme"] = ListedCallsProvider(answer)

    fault = f"provider 'acme': complete.. returned {said}, expected a ChatResponse"
    with pytest.raises(TypeError, match=fault) as caught:
        await rig.run()

    origin = find_origin(caught.value)
    assert origin is not None
    assert origin.text == str(caught.value)
    assert origin.text.endswith(", in complete)")
    assert rig.context.roles() == ["user"]


async def test_an_empty_answer_is_no_success(rig: Rig) -> None:
    rig.providers["acme"] = ListedCallsProvider(says("  "))

    await rig.run()

    done = rig.last("orchestrator:complete")
    assert (done["status"], done["reason"]) == ("incomplete", "empty")


async def test_what_a_provider_raises_names_it_and_the_line(rig: Rig) -> None:
    class Broken(ListedCallsProvider):
        async def complete(self, request: ChatRequest, **_: Any) -> ChatResponse:
            raise RuntimeError("backend down")

    rig.providers["acme"] = Broken()
    with pytest.raises(RuntimeError, match="backend down") as caught:
        await rig.run()

    origin = find_origin(caught.value)
    assert origin is not None
    assert (origin.kind, origin.name) == ("provider", "acme")
    assert "test_published_parts.py, line " in origin.text
    assert origin.text.endswith(", in complete)")


async def test_a_context_that_returns_nothing_is_named(rig: Rig) -> None:
    async def nothing(**_: Any) -> None: ...

    rig.replies("unheard")
    rig.context.get_messages_for_request = nothing  # type: ignore[method-assign,assignment]
    with pytest.raises(TypeError, match="returned None, expected a list of messages") as caught:
        await rig.run()

    origin = find_origin(caught.value)
    assert origin is not None
    assert origin.kind == "context"
    assert origin.text.startswith("context 'tests': get_messages_for_request() returned None")


async def _late() -> str:
    return "late"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: None, "None, expected a ToolResult"),
        (lambda: (line for line in "ab"), "a value of type generator, expected a ToolResult"),
        (
            lambda: ToolResult(output=iter(["a"])),
            "a ToolResult whose output is a value of type list_iterator, expected text or JSON data",
        ),
        (lambda: _late, "a value of type function, expected a ToolResult"),
    ],
    ids=["nothing", "a generator", "an iterator", "a function"],
)
async def test_a_tool_that_returns_code_instead_of_data_has_failed(
    rig: Rig, make: Any, said: str
) -> None:
    async def forgets(input: dict[str, Any]) -> Any:
        return make()

    rig.add_tool(FunctionTool("forgets", forgets))
    rig.replies(calls(call("forgets", id="c1")), "done")
    assert await rig.run() == "done"
    message = f"tool 'forgets' returned {said}"
    assert rig.context.results() == {"c1": f"Error: {message}"}
    assert rig.last("tool:error")["error"] == {"type": "InvalidResult", "message": message}


def _endless() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["self"] = schema
    return schema


class NoSchema(FunctionTool):
    """Its `input_schema` is whatever `given` is; an exception is raised."""

    def __init__(self, given: Any) -> None:
        self.given = given
        super().__init__("broken", _looks)

    @property
    def input_schema(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    @input_schema.setter
    def input_schema(self, _: Any) -> None: ...


@pytest.mark.parametrize(
    "given",
    [KeyError("x"), ["path"], {"properties": {"a": {"enum": {1, 2}}}}, _endless()],
    ids=["raises", "is a list", "has a set", "contains itself"],
)
async def test_a_tool_whose_schema_cannot_be_read_is_left_out_once_with_a_warning(
    rig: Rig, given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig.add_tool(NoSchema(given))
    rig.add_tool(echo_tool())
    rig.replies(calls(call(id="c1", text="a")), "done")

    with caplog.at_level(logging.WARNING):
        assert await rig.run() == "done"

    assert [data["tools"] for data in rig.of("provider:request")] == [["echo"], ["echo"]]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert warnings[0].startswith("tool 'broken' raised ")
    assert "the model is not offered this tool" in warnings[0]


# --- names of tools ---------------------------------------------------------------------------------


async def test_a_tool_is_found_by_its_own_name_and_policies_see_its_mount_name(rig: Rig) -> None:
    rig.tools["my-tool"] = echo_tool("my_tool")
    rig.replies(calls(call("my_tool", id="c1", text="a")), "done")

    await rig.run()

    assert rig.of("provider:request")[0]["tools"] == ["my-tool"]
    assert rig.context.results() == {"c1": "A"}
    assert rig.last("tool:pre")["tool_name"] == "my-tool"
    assert rig.last("tool:pre")["called_as"] == "my_tool"


async def test_a_name_that_two_tools_have_means_neither(rig: Rig) -> None:
    rig.tools |= {"one": echo_tool("same"), "two": echo_tool("same")}
    rig.replies(calls(call("same", id="c1", text="a")), "done")

    await rig.run()

    assert "unknown tool 'same'; available tools: one, two" in rig.context.results()["c1"]


async def test_names_that_vendors_refuse_are_not_sent(rig: Rig) -> None:
    legal, odd, spaced = echo_tool("legal"), echo_tool("is legal not"), echo_tool("legal_name")
    rig.tools |= {"legal": legal, "not legal.": odd, "a b": spaced}
    rig.replies(calls(call("legal_name", id="c1", text="a")), "done")

    await rig.run()

    offered = rig.of("provider:request")[0]["tools"]
    assert (offered[0], offered[2]) == ("legal", "legal_name")
    assert offered[1].startswith("not_legal__")
    assert rig.context.results() == {"c1": "A"}
    assert [len(tool.inputs) for tool in (legal, odd, spaced)] == [0, 0, 1]
