"""The course of a turn: requests, stored messages, events and the returned text."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_core.llm_errors import ConfigurationError, RateLimitError, StreamError
from amplifier_core.message_models import ChatRequest
from amplifier_core.testing import EventRecorder
from amplifier_modules._shared.loop.exchange import choose_provider
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool

TURN = ["prompt:submit", "execution:start"]
CYCLE = ["provider:request", "provider:response"]
END = ["execution:end", "prompt:complete", "message.end", "orchestrator:complete"]
FAILED = ["execution:end", "prompt:complete", "orchestrator:complete"]


async def test_answer_is_returned_and_stored(rig: Rig) -> None:
    rig.replies("Hello there")

    assert await rig.run("hi") == "Hello there"

    user, assistant = rig.context.messages
    assert user == {"role": "user", "content": "hi"}
    assert assistant["role"] == "assistant"
    assert assistant["content"] == [{"type": "text", "text": "Hello there"}]
    assert "tool_calls" not in assistant
    assert assistant["metadata"]["model"] == "mock-model"
    assert assistant["metadata"]["usage"]["input_tokens"] > 0


async def test_events_come_in_order_and_once(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.replies(calls(call(text="a")), "done")

    await rig.run()

    assert rig.names() == [*TURN, *CYCLE, "tool:pre", "tool:post", *CYCLE, "turn:ending", *END]
    done = rig.last("orchestrator:complete")
    assert (done["orchestrator"], done["turn_count"], done["status"]) == (
        rig.kind.name,
        2,
        "success",
    )
    assert rig.last("execution:end")["status"] == "success"
    assert rig.last("prompt:complete")["response"] == "done"


async def test_a_turn_inside_a_tool_call_is_a_child_of_that_call(rig: Rig) -> None:
    inner = Rig(rig.kind)
    inner.replies("inner answer")

    async def delegate(_: dict[str, Any]) -> str:
        return await inner.run("inner prompt")

    rig.add_tool(FunctionTool("delegate", delegate))
    rig.replies(calls(call("delegate", id="d1")), "outer answer")

    assert await rig.run() == "outer answer"
    assert rig.context.results() == {"d1": "inner answer"}
    assert inner.of("prompt:submit")[0]["parent_span_id"] == rig.of("tool:post")[0]["span_id"]


async def test_assistant_message_keeps_blocks_in_order_and_names_its_calls(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    reply = {
        "thinking": "let me see",
        "signature": "sig",
        "text": "calling",
        "tool_calls": [{"id": "c1", "name": "echo", "input": {"text": "é"}}],
    }
    rig.replies(reply, "done")

    await rig.run()

    message = rig.context.messages[1]
    assert message["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": "sig"},
        {"type": "text", "text": "calling"},
        {"type": "tool_call", "id": "c1", "name": "echo", "input": {"text": "é"}},
    ]
    assert message["tool_calls"] == [{"id": "c1", "tool": "echo", "arguments": {"text": "é"}}]
    assert message["thinking_block"] == message["content"][0]
    assert rig.context.messages[2] == {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "echo",
        "content": "É",
    }
    json.dumps(rig.context.messages)


async def test_request_offers_tools_with_their_schemas(rig: Rig) -> None:
    tool = rig.add_tool(echo_tool())
    provider = rig.replies("ok")

    await rig.run()

    request = provider.requests[0]
    assert isinstance(request, ChatRequest)
    assert request.tools is not None
    (spec,) = request.tools
    assert (spec.name, spec.description, spec.parameters) == (
        "echo",
        tool.description,
        tool.input_schema,
    )
    assert rig.last("provider:request")["tools"] == ["echo"]


async def test_schema_may_come_from_get_schema(rig: Rig) -> None:
    class Tool:
        name = "old"
        description = "describes its input by a method"

        def get_schema(self) -> dict[str, Any]:
            return {"type": "object", "required": ["path"]}

        async def execute(self, input: dict[str, Any]) -> str:
            return "ran"

    rig.add_tool(Tool())
    provider = rig.replies(calls(call("old", id="c1")), "done")

    await rig.run()

    assert provider.requests[0].tools[0].parameters["required"] == ["path"]  # type: ignore[index]
    assert "'path' is a required property" in rig.context.results()["c1"]


async def test_no_tools_are_offered_to_a_provider_without_tool_support(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    provider = rig.replies("ok", supports_tools=False)

    await rig.run()

    assert provider.requests[0].tools is None
    assert rig.last("provider:request")["tools"] == []


async def test_max_iterations_ends_the_turn_incomplete(rig: Rig) -> None:
    rig.config = {"max_iterations": 3}
    tool = rig.add_tool(echo_tool())
    rig.replies(calls(call(text="again")), on_end="cycle")

    assert await rig.run() == "Max iterations reached"

    done = rig.last("orchestrator:complete")
    assert (done["status"], done["turn_count"], done["reason"]) == (
        "incomplete",
        3,
        "max_iterations",
    )
    assert len(tool.inputs) == 3
    assert rig.context.roles()[-1] == "tool"


@pytest.mark.parametrize("unlimited", [0, -1])
async def test_max_iterations_may_be_unlimited(rig: Rig, unlimited: int) -> None:
    rig.config = {"max_iterations": unlimited}
    rig.add_tool(echo_tool())
    rig.replies(*[calls(call(text=f"again {n}")) for n in range(52)], "at last")

    assert await rig.run() == "at last"


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
async def test_an_answer_cut_short_is_no_success(rig: Rig, finish_reason: str) -> None:
    rig.replies({"text": "half an ans", "finish_reason": finish_reason})

    assert await rig.run() == "half an ans"
    done = rig.last("orchestrator:complete")
    assert (done["status"], done["reason"]) == ("incomplete", finish_reason)


@pytest.mark.parametrize("prompt", ["", "  \n"])
async def test_empty_prompt_is_refused(rig: Rig, prompt: str) -> None:
    provider = rig.replies("never")

    with pytest.raises(ValueError, match="Prompt cannot be empty"):
        await rig.run(prompt)

    assert rig.names() == ["orchestrator:complete"]
    assert rig.last("orchestrator:complete")["status"] == "error"
    assert provider.requests == []
    assert rig.context.messages == []


async def test_no_provider_is_refused(rig: Rig) -> None:
    with pytest.raises(ValueError, match="At least one provider required"):
        await rig.run()

    assert rig.names() == ["orchestrator:complete"]


async def test_provider_errors_are_reported_and_raised_unchanged(rig: Rig) -> None:
    rig.replies({"error": {"type": "RateLimitError", "message": "slow down", "retry_after": 7}})

    with pytest.raises(RateLimitError, match="slow down") as caught:
        await rig.run()

    assert caught.value.retry_after == 7
    reported = rig.last("provider:error")
    assert reported["error"] == {
        "type": "RateLimitError",
        "message": "slow down",
        "retryable": True,
    }
    assert (reported["provider"], reported["model"]) == ("mock", "mock-model")
    assert rig.names() == [*TURN, "provider:request", "provider:error", *FAILED]
    assert rig.last("execution:end")["status"] == "error"
    assert rig.last("orchestrator:complete")["status"] == "error"
    assert rig.last("orchestrator:complete")["turn_count"] == 0
    assert rig.context.roles() == ["user"]


async def test_provider_error_belongs_to_the_request_it_answers(rig: Rig) -> None:
    """It is emitted where the provider's own events are, so it carries and closes their id."""

    class Fails:
        async def complete(self, request: Any) -> Any:
            await rig.coordinator.hooks.emit("llm:request", {})
            raise StreamError("broke off")

    rig.providers["fails"] = Fails()
    with pytest.raises(StreamError):
        await rig.run()

    assert rig.last("provider:error")["request_id"] == rig.last("llm:request")["request_id"]


async def test_a_context_that_fails_ends_the_turn_with_its_own_error(rig: Rig) -> None:
    rig.replies("unheard")

    async def full(message: dict[str, Any]) -> None:
        raise OSError("disk full")

    rig.context.add_message = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        await rig.run()

    assert rig.names() == [*TURN, *FAILED]
    assert rig.last("orchestrator:complete")["error"] == "disk full"


async def test_works_with_a_bare_event_recorder_as_hooks(rig: Rig) -> None:
    rig.replies("done")
    recorder = EventRecorder()

    answer = await rig.kind().execute("hi", rig.context, rig.providers, {}, recorder)

    assert answer == "done"
    assert recorder.get_events("orchestrator:complete")


async def test_injection_budget_is_per_turn(rig: Rig) -> None:
    rig.replies("one", "two")
    rig.coordinator.injected_tokens = 99

    await rig.run()

    assert rig.coordinator.injected_tokens == 0


class TestProviderChoice:
    @staticmethod
    def three(rig: Rig) -> None:
        for name, priority in (("late", 200), ("early", 5), ("middle", 50)):
            rig.replies(f"from {name}", priority=priority)
            rig.providers[name] = rig.providers.pop("mock")

    def test_priority_may_stand_in_the_providers_config(self) -> None:
        own, configured = SimpleNamespace(priority=20), SimpleNamespace(config={"priority": 10})
        providers = {"own": own, "configured": configured}
        assert choose_provider(providers, None) == ("configured", configured)

    def test_no_priority_means_100_and_the_first_of_equals_wins(self) -> None:
        silent, hundred = SimpleNamespace(config=None), SimpleNamespace(priority=100)
        assert choose_provider({"silent": silent, "hundred": hundred}, None)[0] == "silent"
        assert choose_provider({"hundred": hundred, "silent": silent}, None)[0] == "hundred"

    async def test_a_default_provider_that_is_not_there_is_named(self, rig: Rig) -> None:
        self.three(rig)
        rig.config = {"default_provider": "absent"}
        with pytest.raises(ConfigurationError, match=r"'absent' is not mounted.*late, early"):
            await rig.run()


class TestDictionaryProviders:
    """Providers written after the Orchestrator Contract's samples."""

    class Provider:
        name = "plain"

        def __init__(self, *responses: dict[str, Any]) -> None:
            self.responses = list(responses)
            self.seen: list[Any] = []

        async def complete(self, request: Any) -> dict[str, Any]:
            self.seen.append([message["role"] for message in request["messages"]])
            return self.responses.pop(0)

        def parse_tool_calls(self, response: dict[str, Any]) -> list[dict[str, Any]]:
            return [b for b in response["content"] if b["type"] == "tool_call"]

    async def test_dict_responses_and_calls_work(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        asks = {"type": "tool_call", "id": "c1", "name": "echo", "input": {"text": "x"}}
        provider = self.Provider(
            {"content": [asks], "usage": {"input_tokens": 3, "output_tokens": 1}},
            {"content": [{"type": "text", "text": "bye"}]},
        )
        rig.providers["plain"] = provider

        assert await rig.run() == "bye"
        assert tool.inputs == [{"text": "x"}]
        assert provider.seen == [["user"], ["user", "assistant", "tool"]]
        assert rig.last("orchestrator:complete")["usage"] == {"input_tokens": 3, "output_tokens": 1}
