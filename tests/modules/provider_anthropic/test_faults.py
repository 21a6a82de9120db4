"""Every fault a service can have, counted at the service."""

import asyncio
from typing import Any

import pytest

from amplifier_core.llm_errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    ProviderUnavailableError,
    RateLimitError,
    StreamError,
)
from amplifier_modules._shared.providers import base as provider_base
from tests.modules.provider_anthropic.support import HELLO, READ, Setting, client, playing
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Garbage,
    Malformed,
    Reply,
    ResetAfter,
    Stall,
    Status,
    ToolCall,
)

pytestmark = pytest.mark.usefixtures("each_client")

# message_start, ping, thinking (start, 2 deltas, signature, stop), text (start, 2 deltas, stop),
# tool (start, delta, delta, stop), message_delta, message_stop
RICH = Reply(
    text="hello there",
    thinking="let me think",
    tool_calls=[ToolCall("read", {"path": "x"})],
    chars_per_delta=6,
)
SOON = {"retry-after-ms": "1"}


@pytest.fixture(autouse=True)
def _no_long_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_base, "FIRST_DELAY", 0.001)


def number_of_events() -> int:
    from tests.support.llm.anthropic import Anthropic
    from tests.support.llm.http import Request

    request = Request("POST", "/v1/messages", "", {}, b"{}")
    request.body = {"model": "m"}
    return len(Anthropic().events(RICH, request))


EVENTS = number_of_events()
PING = 2
REQUEST = {**HELLO, "tools": [READ]}


def rich(fault: Any) -> Reply:
    return Reply(
        text=RICH.text,
        thinking=RICH.thinking,
        tool_calls=RICH.tool_calls,
        chars_per_delta=RICH.chars_per_delta,
        fault=fault,
    )


# -- retried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 529])
async def test_passing_faults_are_tried_again_until_the_limit(status: int):
    async with playing(*[Status(status, headers=SOON)] * 9, max_retries=2) as setting:
        with pytest.raises(LLMError) as caught:
            await setting.provider.complete(HELLO)
        assert caught.value.status_code == status
        assert caught.value.retryable
        assert len(setting.server.requests) == 3


@pytest.mark.parametrize(
    ("header", "seconds"),
    [({"retry-after": "0.2"}, 0.2), ({"retry-after-ms": "100"}, 0.1), ({"retry-after": "0"}, 0.0)],
)
async def test_the_pause_the_service_names_is_the_pause(
    header: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(provider_base, "FIRST_DELAY", 20.0)
    async with playing(Status(429, headers=header), Status(503, headers=header), "ok") as setting:
        await setting.provider.complete(HELLO)
        delays = [retry["delay"] for retry in setting.emitted("provider:retry")]
        first, second, third = [request.arrived for request in setting.server.requests]
    assert delays == pytest.approx([seconds, seconds], rel=0.1, abs=0.01)
    assert second - first >= seconds * 0.9
    assert third - second >= seconds * 0.9


async def test_a_pause_that_is_too_long_is_not_waited_for():
    async with playing(Status(429, headers={"retry-after": "3600"}), "ok") as setting:
        with pytest.raises(RateLimitError) as caught:
            await setting.provider.complete(HELLO)
        assert caught.value.retry_after == 3600
        assert caught.value.retryable
        assert len(setting.server.requests) == 1
        assert setting.emitted("provider:retry") == []


async def test_a_cancelled_session_is_not_tried_again():
    async with playing(Status(529), "ok") as setting:
        setting.coordinator.cancellation.request_graceful()
        with pytest.raises(ProviderUnavailableError):
            await setting.provider.complete(HELLO)
        assert len(setting.server.requests) == 1


async def test_cancelling_the_task_ends_the_pause():
    async with playing(Status(429, headers={"retry-after": "60"}), "ok") as setting:
        retrying = asyncio.Event()
        setting.coordinator.hooks.register("provider:retry", lambda *_: retrying.set())
        task = asyncio.create_task(setting.provider.complete(HELLO))
        await retrying.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert setting.emitted("llm:response")[0]["status"] == "aborted"


# -- never retried ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (Status(401), AuthenticationError),
        (Status(400, message="prompt is too long: 2 > 1"), ContextLengthError),
        (Status(529, headers={"x-should-retry": "false"}), ProviderUnavailableError),
    ],
)
async def test_a_refusal_is_final(status: Status, cls: type[LLMError]):
    async with playing(status, "never said") as setting:
        with pytest.raises(cls) as caught:
            await setting.provider.complete(HELLO)
        assert type(caught.value) is cls
        assert caught.value.provider == "anthropic"
        assert caught.value.model == "claude-sonnet-5-5"
        assert len(setting.server.requests) == 1


# -- in the middle of a stream -----------------------------------------------------------------


@pytest.mark.parametrize("fault", [Cut, lambda n: Cut(n, clean=True), ResetAfter, ErrorEvent])
async def test_a_broken_stream_is_never_a_success(fault: Any):
    for after in range(EVENTS):
        async with playing(rich(fault(after)), "again", max_retries=0) as setting:
            chunks: list[Any] = []
            with pytest.raises(LLMError) as caught:
                await setting.collect(chunks, REQUEST)
            assert all(isinstance(chunk, dict) for chunk in chunks), after
            assert caught.value.retryable, after
            if chunks:
                assert isinstance(caught.value, StreamError), after


async def test_a_stalled_stream_ends_at_the_idle_limit():
    options = {"idle_timeout": 0.05, "max_retries": 0}
    for after in range(EVENTS):
        async with playing(rich(Stall(after)), **options) as setting:
            chunks: list[Any] = []
            with pytest.raises((LLMTimeoutError, StreamError), match=r"silent|no part"):
                await setting.collect(chunks, REQUEST)
            assert all(isinstance(chunk, dict) for chunk in chunks), after


async def test_an_event_that_is_not_json_ends_the_stream():
    for at in range(EVENTS):
        async with playing(rich(Malformed(at)), max_retries=0) as setting:
            if at == PING and client.get() == "sdk":
                await setting.stream(REQUEST)  # The SDK does not read pings.
                continue
            with pytest.raises(StreamError, match="not JSON"):
                await setting.stream(REQUEST)


async def test_garbage_between_events_breaks_nothing_or_the_stream():
    for at in range(EVENTS):
        async with playing(rich(Garbage(at)), max_retries=0) as setting:
            try:
                _, response = await setting.stream(REQUEST)
            except LLMError:
                continue
            kinds = [block.type for block in response.content]
            assert kinds == ["thinking", "text", "tool_call"], at


@pytest.mark.parametrize("after", [0, 1])
async def test_a_stream_of_which_nothing_was_shown_is_begun_again(after: int):
    async with playing(rich(Cut(after)), RICH) as setting:
        chunks, response = await setting.stream(REQUEST)
        shown = [c for c in chunks if c["type"] == "content_block_start"]
        assert [c["index"] for c in shown] == [0, 1, 2]
        assert response.finish_reason == "tool_calls"
        assert len(setting.server.requests) == 2


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("overloaded_error", ProviderUnavailableError),
        ("invalid_request_error", InvalidRequestError),
        ("authentication_error", AuthenticationError),
    ],
)
async def test_an_error_event_keeps_its_meaning(kind: str, cls: type[LLMError]):
    error = ErrorEvent(0, type=kind, message="the reason")
    async with playing(Reply("x", fault=error), max_retries=0) as setting:
        with pytest.raises(cls, match="the reason"):
            await setting.provider.complete(HELLO)


# -- events -----------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_call_is_reported_once_whatever_its_attempts(streamed: bool):
    async with playing(Status(529, headers=SOON), "hello") as setting:
        await ask(setting, streamed, tools=[READ])
        names = [name for name, _ in setting.events]
        assert names == ["llm:request", "provider:retry", "llm:response"]
        (asked,) = setting.emitted("llm:request")
        assert asked["provider"] == "anthropic"
        assert asked["model"] == "claude-sonnet-5-5"
        assert asked["tools"] == ["read"]
        (answered,) = setting.emitted("llm:response")
        assert answered["status"] == "ok"
        assert answered["finish_reason"] == "stop"
        assert answered["usage"]["output_tokens"] == 5
        (retry,) = setting.emitted("provider:retry")
        assert retry["error_type"] == "ProviderUnavailableError"
        assert "529" in retry["error_message"]


async def test_a_repaired_conversation_is_reported():
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "x"}
    async with playing("hello") as setting:
        await setting.provider.complete({"messages": [*HELLO["messages"], orphan]})
        (repaired,) = setting.emitted("provider:tool_sequence_repaired")
        assert "gone" in repaired["repairs"][0]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_failed_call_is_reported_as_such(streamed: bool):
    async with playing(Status(401)) as setting:
        with pytest.raises(AuthenticationError):
            await ask(setting, streamed)
        (answered,) = setting.emitted("llm:response")
        assert answered["status"] == "error"
        assert answered["error"]["type"] == "AuthenticationError"


async def test_a_stream_that_is_left_early_is_reported_as_aborted():
    async with playing(Reply("x" * 1000)) as setting:
        stream = setting.provider.stream_complete(HELLO)
        await anext(stream)
        await stream.aclose()
        assert setting.emitted("llm:response")[0]["status"] == "aborted"


async def ask(setting: Setting, streamed: bool, **fields: Any) -> Any:
    request = {**HELLO, **fields}
    if streamed:
        return (await setting.stream(request))[1]
    return await setting.provider.complete(request)
