"""What was recorded is answered again: chunks, answers, errors and events."""

import time
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.content_models import TextContent, ToolCallContent
from amplifier_core.interfaces import Provider
from amplifier_core.llm_errors import AbortError, LLMError, RateLimitError, StreamError
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.testing import MockCoordinator
from amplifier_extras import provider_replay
from amplifier_modules import provider_anthropic, provider_openai
from tests.extras.provider_replay.support import (
    Foreign,
    OwnError,
    OwnLLMError,
    ask,
    chunks_of,
    coordinator_in,
    heard_on,
    lines_of,
    recording,
    replaying,
)
from tests.support.llm_server import Reply, ScriptedLLM, Status, Thinking
from tests.support.llm_server import ToolCall as Call


async def collect(provider: Any, seen: list[Any]) -> None:
    async for chunk in provider.stream_complete(ask()):
        seen.append(chunk)  # noqa: PERF401 - those before an error count


CALLS = {"text": "I look.", "tool_calls": [{"name": "read", "input": {"path": "a", "to": None}}]}


async def test_streamed_answers_come_again_chunk_by_chunk(tmp_path: Path):
    reply = {**CALLS, "thinking": "hm", "signature": "sig"}
    async with recording(tmp_path, reply, "done") as coordinator:
        provider = coordinator.get("providers", "mock")
        first = [await chunks_of(provider, ask()), await chunks_of(provider, ask("hi", "a", "b"))]
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        assert [
            await chunks_of(provider, ask()),
            await chunks_of(provider, ask("hi", "a", "b")),
        ] == first


async def test_whole_answers_come_again(tmp_path: Path):
    async with recording(tmp_path, CALLS) as coordinator:
        first = await coordinator.get("providers", "mock").complete(ask())
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        again = await provider.complete(ask())
        assert again == first
        assert provider.parse_tool_calls(again) == first.tool_calls
        assert again.tool_calls[0].arguments == {"path": "a", "to": None}


async def test_a_streamed_response_can_be_requested_whole(tmp_path: Path):
    async with recording(tmp_path, "one") as coordinator:
        [*_, first] = await chunks_of(coordinator.get("providers", "mock"), ask())
    async with replaying(tmp_path) as coordinator:
        assert await coordinator.get("providers", "mock").complete(ask()) == first


async def test_the_same_events_are_heard_with_the_ids_of_this_run(tmp_path: Path):
    async with recording(tmp_path, "one") as coordinator:
        first = heard_on(coordinator)
        await chunks_of(coordinator.get("providers", "mock"), ask())
    async with replaying(tmp_path) as coordinator:
        again = heard_on(coordinator)
        await chunks_of(coordinator.get("providers", "mock"), ask())
    assert [name for name, _ in again] == ["llm:request", "llm:response"]

    def own(events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in data.items() if k != "timestamp"} for _, data in events]

    assert own(again) == own(first)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "RateLimitError", "message": "slow", "retry_after": 7.5}, RateLimitError),
        ({"type": "StreamError", "message": "broke", "after_chunks": 2}, StreamError),
        ({"type": "ContextLengthError", "status_code": 400}, LLMError),
    ],
)
async def test_errors_come_again_as_the_same_kind(tmp_path: Path, error: Any, kind: type):
    async def failing(coordinator: MockCoordinator) -> tuple[int, Any]:
        seen: list[Any] = []
        with pytest.raises(kind) as caught:
            await collect(coordinator.get("providers", "mock"), seen)
        return len(seen), (type(caught.value), repr(caught.value))

    async with recording(tmp_path, {"text": "some text to break", "error": error}) as coordinator:
        first = await failing(coordinator)
    async with replaying(tmp_path) as coordinator:
        assert await failing(coordinator) == first


async def test_providers_with_complete_alone_are_recorded_and_replayed(tmp_path: Path):
    call = ToolCallContent(id="1", name="read", arguments={"path": "x"})
    for_events: dict[str, Any] = {"content_blocks": [TextContent(text="a"), call]}
    response = ChatResponse(content=[TextBlock(text="a")], **for_events)
    mapping = {"content": [{"type": "text", "text": "b"}], "usage": None}
    foreign = Foreign(
        response, mapping, OwnError("own"), OwnLLMError("x", retryable=True), KeyError("k")
    )
    async with recording(tmp_path, provider=foreign) as coordinator:
        provider = coordinator.get("providers", "foreign")
        assert provider.extra == "reachable"
        provider.extra = "set"
        assert foreign.extra == "set"
        assert not hasattr(type(provider), "stream_complete")
        as_loops_see_it: Any = provider
        assert isinstance(as_loops_see_it, Provider)
        await provider.complete(ask("1"))
        await provider.complete(ask("2"))
        for text in ("3", "4", "5"):
            with pytest.raises(Exception, match=r"own|x|k"):
                await provider.complete(ask(text))
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "foreign")
        assert (provider.priority, provider.get_info().display_name) == (7, "Foreign")
        assert not hasattr(provider, "stream_complete")
        again = await provider.complete(ask("1"))
        assert again.content_blocks == for_events["content_blocks"]
        # the calls that only the provider's own parse_tool_calls finds
        assert [call.name for call in provider.parse_tool_calls(again)] == ["read"]
        second = await provider.complete(ask("2"))
        assert second["content"] == mapping["content"]
        with pytest.raises(Exception, match=r"^own$") as caught:
            await provider.complete(ask("3"))
        assert type(caught.value).__name__ == "OwnError"
        with pytest.raises(LLMError) as caught:
            await provider.complete(ask("4"))
        assert (type(caught.value).__name__, caught.value.retryable) == ("OwnLLMError", True)
        with pytest.raises(KeyError):
            await provider.complete(ask("5"))


async def test_a_call_that_was_broken_off_ends_in_an_error(tmp_path: Path):
    async with recording(tmp_path, "a long answer of many words") as coordinator:
        stream = coordinator.get("providers", "mock").stream_complete(ask())
        await anext(stream)
        await anext(stream)
        await stream.aclose()
    assert lines_of(tmp_path / "rec.jsonl")[-1]["type"] == "cut"
    async with replaying(tmp_path) as coordinator:
        seen: list[Any] = []
        with pytest.raises(AbortError, match="call 1"):
            await collect(coordinator.get("providers", "mock"), seen)
    assert len(seen) == 2


async def test_an_answer_may_take_as_long_as_it_did(tmp_path: Path):
    async with recording(tmp_path, "one", mock={"delay": 0.3}) as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    for speed, least in ((1, 0.28), (0, 0.0)):
        async with replaying(tmp_path, speed=speed) as coordinator:
            begun = time.monotonic()
            await coordinator.get("providers", "mock").complete(ask())
            assert time.monotonic() - begun >= least


@pytest.mark.parametrize("module", [provider_anthropic, provider_openai])
async def test_bundled_providers_answer_again_without_server_or_key(tmp_path: Path, module: Any):
    reply = Reply(
        thinking=Thinking("hm"), text="answer", tool_calls=[Call("read", {"path": "x"}, id="t1")]
    )
    coordinator = coordinator_in(tmp_path)
    tools = [{"name": "read", "parameters": {"type": "object", "properties": {}}}]
    async with ScriptedLLM([Status(503, "busy"), reply]) as server:
        config = {"api_key": "k", "base_url": server.base_url, "model": "claude-haiku-4-5"}
        closing = [await module.mount(coordinator, config)]
        closing.insert(0, await provider_replay.mount(coordinator, {"record": "rec.jsonl"}))
        first_events = heard_on(coordinator)
        [(name, provider)] = coordinator.get("providers").items()
        first = await chunks_of(provider, ask("go", tools=tools))
        for close in closing:
            await close()
    async with replaying(tmp_path) as coordinator:
        events = heard_on(coordinator)
        player = coordinator.get("providers", name)
        assert await chunks_of(player, ask("go", tools=tools)) == first
        assert (player.model, player.priority) == (provider.model, provider.priority)
        assert player.get_info().defaults == provider.get_info().defaults
    assert [e for e, _ in events] == [e for e, _ in first_events]
    assert [e for e, _ in events] == ["llm:request", "provider:retry", "llm:response"]
