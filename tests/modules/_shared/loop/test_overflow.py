"""A request that is too long for the model is made shorter, once, and never sent again as it was."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from amplifier_core.llm_errors import ContextLengthError
from amplifier_modules._shared.loop.conversation import share_that_fits
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.loop.rig import ListContext, Rig, call, calls, echo_tool
from tests.modules._shared.loop.test_over_http import asks, provided
from tests.support.llm_server import ErrorEvent, Reply, ScriptedLLM, Status

LLMServer = Callable[..., Awaitable[ScriptedLLM]]
TOO_LONG = {
    "anthropic": Status(400, message="prompt is too long: 213000 tokens > 200000 maximum"),
    "openai": Status(400, error_type="context_length_exceeded", message="maximum context length"),
}


@pytest.fixture(params=["anthropic", "openai"])
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


def bodies(server: ScriptedLLM) -> list[str]:
    return [json.dumps(request.body) for request in server.completions]


async def long_conversation(rig: Rig, turns: int = 30) -> SimpleContextManager:
    """A real context that exceeds the model's window, which is unknown."""
    context = SimpleContextManager(hooks=rig.coordinator.hooks)
    for number in range(turns):
        await context.add_message({"role": "user", "content": f"question {number} " * 60})
        await context.add_message({"role": "assistant", "content": f"answer {number} " * 60})
    rig.context: Any = context
    return context


async def test_the_context_is_compacted_and_the_request_made_once_more(
    rig: Rig, dialect: str, llm_server: LLMServer
) -> None:
    server = await llm_server([TOO_LONG[dialect], "It fits."])
    context = await long_conversation(rig)
    async with provided(rig, dialect, server):
        assert await rig.run("go") == "It fits."

    first, second = bodies(server)
    assert len(second) < len(first) * 0.7
    assert "go" in json.dumps(json.loads(second)["messages"][-1])
    assert server.rejections == []
    assert len(await context.get_messages()) == 62, "what is stored stays whole"
    assert rig.last("orchestrator:complete")["status"] == "success"
    (reported,) = rig.of("context:overflow")
    assert reported["error"]["type"] == "ContextLengthError"
    assert reported["after_tokens"] < reported["before_tokens"]
    assert len(rig.of("context:post_compact")) == 1


async def test_a_second_refusal_is_the_end(rig: Rig, dialect: str, llm_server: LLMServer) -> None:
    server = await llm_server([TOO_LONG[dialect]], repeat_last=True)
    await long_conversation(rig)
    async with provided(rig, dialect, server):
        with pytest.raises(ContextLengthError):
            await rig.run("go")

    asked = bodies(server)
    assert len(asked) == len(set(asked)) == 2
    assert rig.last("orchestrator:complete")["status"] == "error"


async def test_one_long_turn_is_made_to_fit_too(
    rig: Rig, dialect: str, llm_server: LLMServer
) -> None:
    """All of it counts as recent, which compaction keeps; half the room then has to do."""
    rig.add_tool(echo_tool())
    work = [asks(f"{n} " + "word " * 400) for n in range(6)]
    server = await llm_server([*work, TOO_LONG[dialect], asks("more"), "Done."])
    rig.context: Any = SimpleContextManager()
    async with provided(rig, dialect, server):
        assert await rig.run("go") == "Done."

    sizes = [len(body) for body in bodies(server)]
    assert len(sizes) == 9
    assert sizes[7] < sizes[6] * 0.8
    assert max(sizes[7:]) < sizes[6] * 0.8, "what was too long once is not tried again"
    assert server.rejections == []


async def test_what_does_not_fit_is_remembered_in_the_next_turn(
    rig: Rig, llm_server: LLMServer
) -> None:
    server = await llm_server([TOO_LONG["anthropic"], "One.", "Two."])
    context = await long_conversation(rig)
    async with provided(rig, "anthropic", server):
        loop = rig.kind()
        for prompt, answer in (("go", "One."), ("on", "Two.")):
            given = {"providers": rig.providers, "tools": {}, "hooks": rig.coordinator.hooks}
            text = await loop.execute(prompt, context, **given, coordinator=rig.coordinator)
            assert text == answer
    assert len(server.completions) == 3


async def test_a_context_without_compaction_is_asked_for_less(rig: Rig) -> None:
    budgets: list[int | None] = []

    class Windowed(ListContext):
        async def get_messages_for_request(
            self, token_budget: int | None = None, provider: Any = None
        ) -> list[dict[str, Any]]:
            budgets.append(token_budget)
            return self.messages if token_budget is None else self.messages[-3:]

    rig.context = Windowed([{"role": "user", "content": "x" * 400}] * 20)
    rig.add_tool(echo_tool())
    rig.replies({"error": {"type": "ContextLengthError"}}, calls(call(text="a")), "done")

    assert await rig.run() == "done"
    first, half, later = budgets
    assert (first, later) == (None, half)
    assert half is not None
    assert half > 500


async def test_a_context_with_nothing_smaller_to_give_is_not_asked_with_again(rig: Rig) -> None:
    provider = rig.replies({"error": {"type": "ContextLengthError"}}, "never asked")
    with pytest.raises(ContextLengthError):
        await rig.run()
    assert len(provider.requests) == 1
    assert rig.last("context:overflow")["after_tokens"] is None


async def test_what_hooks_said_for_the_request_is_said_again(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.config = {"max_repeats": 1}
    rig.context = ListContext([{"role": "user", "content": "x" * 400}] * 20)

    async def half(token_budget: int | None = None, provider: Any = None) -> list[dict[str, Any]]:
        return rig.context.messages if token_budget is None else rig.context.messages[-3:]

    rig.context.get_messages_for_request = half
    overflow = {"error": {"type": "ContextLengthError"}}
    provider = rig.replies(calls(call(text="a")), overflow, "done")
    assert await rig.run() == "done"
    texts = [str(request.messages[-1].content) for request in provider.requests]
    assert ["in a row" in text for text in texts] == [False, True, True]


async def test_an_answer_that_was_shown_is_not_begun_again(streaming_rig: Rig) -> None:
    rig = streaming_rig
    await long_conversation(rig)
    fault = {"type": "ContextLengthError", "after_chunks": 3}
    provider = rig.replies({"text": "shown " * 20, "error": fault}, "never asked")
    with pytest.raises(ContextLengthError):
        await rig.run()
    assert len(provider.requests) == 1
    assert rig.of("context:overflow") == []


async def test_a_refusal_inside_the_stream_before_any_text_counts_as_well(
    streaming_rig: Rig, llm_server: LLMServer
) -> None:
    refusal = ErrorEvent(after=0, type="invalid_request_error", message="prompt is too long")
    server = await llm_server([Reply("x", fault=refusal), "It fits."])
    await long_conversation(streaming_rig)
    async with provided(streaming_rig, "anthropic", server):
        assert await streaming_rig.run("go") == "It fits."


@pytest.mark.parametrize(
    ("reason", "share"),
    [
        ("prompt is too long: 250000 tokens > 200000 maximum", 0.72),
        (
            "This model's maximum context length is 8,192 tokens. However, your messages resulted "
            "in 16,384 tokens.",
            0.45,
        ),
        ("input length and max_tokens exceed context limit: 190000 + 20000 > 200000", None),
        ("the request exceeds the available context size", None),
        ("error 400: context_length_exceeded", None),
    ],
)
def test_how_much_fits_is_read_from_the_refusal(reason: str, share: float | None) -> None:
    assert share_that_fits(reason) == (None if share is None else pytest.approx(share))
