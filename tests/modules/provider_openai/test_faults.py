"""Faults: one owner of retries, exact numbers of attempts, nothing truncated called success."""

from __future__ import annotations

import asyncio

import pytest

from amplifier_core import llm_errors as errors
from amplifier_core.message_models import ChatResponse
from tests.modules.provider_openai.conftest import ask
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Garbage,
    Malformed,
    Reply,
    Reset,
    ResetAfter,
    Stall,
    Status,
    ToolCall,
    closed_port,
)

AT_ONCE = {"retry-after": "0"}
REPLY = {"text": "Hello there", "tool_calls": [ToolCall("t", {"a": 1}, id="c")]}
# role, text, call opened, its arguments, finish reason, usage, [DONE]
BEFORE_FINISH = range(5)
EVENTS = 7


async def drained(provider) -> tuple[list, Exception | None]:
    chunks = []
    try:
        async for chunk in provider.stream_complete(ask()):
            chunks.append(chunk)  # noqa: PERF401 - what came before the error counts
    except errors.LLMError as error:
        return chunks, error
    return chunks, None


async def test_the_script_has_the_events_these_tests_count(llm_server, mounted):
    server = await llm_server([Reply(**REPLY, fault=Cut(EVENTS, clean=True))])
    chunks, error = await drained(await mounted(server))
    assert error is None
    assert chunks[-1].usage is not None


@pytest.mark.parametrize(
    "fault",
    [Cut, lambda after: Cut(after, clean=True), ResetAfter, Stall, ErrorEvent, Malformed],
    ids=["cut", "ended", "reset", "stall", "error", "malformed"],
)
async def test_a_fault_before_the_finish_is_never_success(llm_server, mounted, fault):
    for after in BEFORE_FINISH:
        server = await llm_server([Reply(**REPLY, fault=fault(after))])
        provider = await mounted(server, idle_timeout=0.2)
        chunks, error = await drained(provider)
        assert not any(isinstance(chunk, ChatResponse) for chunk in chunks), after
        assert isinstance(error, errors.LLMError), after
        assert error.retryable, after
        if chunks:
            assert isinstance(error, errors.StreamError), after


@pytest.mark.parametrize("after", range(max(BEFORE_FINISH) + 1, EVENTS))
@pytest.mark.parametrize(
    "fault",
    [Cut, lambda after: Cut(after, clean=True), ResetAfter, Stall],
    ids=["cut", "ended", "reset", "stall"],
)
async def test_a_fault_after_the_finish_costs_only_the_accounting(
    llm_server, mounted, fault, after
):
    server = await llm_server([Reply(**REPLY, fault=fault(after))])
    chunks, error = await drained(await mounted(server, idle_timeout=0.3))
    assert error is None
    assert chunks[-1].tool_calls[0].arguments == {"a": 1}
    assert (chunks[-1].usage is not None) is (after == EVENTS - 1)


async def test_garbage_between_events_is_passed_over(llm_server, mounted):
    server = await llm_server([Reply(**REPLY, fault=Garbage(2))])
    chunks, error = await drained(await mounted(server))
    assert error is None
    assert chunks[-1].content[0].text == "Hello there"


async def test_a_stream_that_has_begun_is_not_begun_again(llm_server, mounted):
    server = await llm_server([Reply(**REPLY, fault=Cut(3)), "never asked for"])
    chunks, error = await drained(await mounted(server, max_retries=3))
    assert isinstance(error, errors.StreamError)
    assert chunks
    assert len(server.completions) == 1


async def test_a_stream_that_has_not_shown_anything_is_begun_again(
    llm_server, mounted, coordinator, heard
):
    fault = ErrorEvent(1, type="server_error")
    server = await llm_server([Reply(**REPLY, fault=fault), Status(503, headers=AT_ONCE), "ok"])
    provider = await mounted(server, max_retries=2)
    chunks, error = await drained(provider)
    assert error is None
    assert chunks[-1].content[0].text == "ok"
    assert [name for name, _ in heard] == [
        "llm:request",
        "provider:retry",
        "provider:retry",
        "llm:response",
    ]
    retry = heard[2][1]
    assert (retry["attempt"], retry["max_retries"]) == (2, 2)
    assert retry["error_type"] == "ProviderUnavailableError"
    assert heard[-1][1]["usage"]["total_tokens"] == 15


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_the_number_of_attempts_is_exact(llm_server, mounted, retries):
    server = await llm_server([Status(429, headers=AT_ONCE)], repeat_last=True)
    provider = await mounted(server, max_retries=retries)
    with pytest.raises(errors.RateLimitError):
        await provider.complete(ask())
    assert len(server.completions) == retries + 1


async def test_a_pause_longer_than_anybody_waits_goes_up_at_once(llm_server, mounted):
    server = await llm_server([Status(429, headers={"retry-after": "3600"})], repeat_last=True)
    provider = await mounted(server, max_retries=3)
    with pytest.raises(errors.RateLimitError) as caught:
        await provider.complete(ask())
    assert caught.value.retry_after == 3600
    assert len(server.completions) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, "bad", errors.InvalidRequestError),
        (401, "no key", errors.AuthenticationError),
        (403, "not yours", errors.AccessDeniedError),
        (404, "no such model", errors.NotFoundError),
    ],
)
async def test_permanent_failures_are_not_retried(llm_server, mounted, status, body, kind):
    server = await llm_server([Status(status, message=body)], repeat_last=True)
    provider = await mounted(server, max_retries=3)
    with pytest.raises(kind) as caught:
        await provider.complete(ask())
    assert body in str(caught.value)
    assert caught.value.status_code == status
    assert caught.value.provider == "openai"
    assert caught.value.model == "m"
    assert len(server.completions) == 1


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (429, {"code": "insufficient_quota", "message": "q"}, errors.QuotaExceededError),
        (400, {"code": "context_length_exceeded", "message": "c"}, errors.ContextLengthError),
        (400, {"code": "content_filter", "message": "f"}, errors.ContentFilterError),
        (400, {"type": "exceed_context_size_error", "message": "x"}, errors.ContextLengthError),
        (500, {"message": "s"}, errors.ProviderUnavailableError),
        (408, {"message": "t"}, errors.LLMTimeoutError),
    ],
)
async def test_error_bodies_determine_the_error_class(answered, status, error, kind):
    with pytest.raises(kind) as caught:
        await answered(Status(status, body={"error": error}))
    assert type(caught.value) is kind


async def test_a_reset_before_the_answer_is_a_network_error(answered):
    with pytest.raises(errors.NetworkError) as caught:
        await answered(Reset())
    assert caught.value.retryable


async def test_a_closed_port_is_a_network_error(mounted):
    with closed_port() as port:
        provider = await mounted(f"http://127.0.0.1:{port}")
        with pytest.raises(errors.NetworkError):
            await provider.complete(ask())


async def test_the_time_limit_of_a_request_holds(llm_server, mounted):
    server = await llm_server([Reply(**REPLY, fault=Stall(2))])
    provider = await mounted(server, timeout=0.3)
    _, error = await drained(provider)
    assert isinstance(error, errors.LLMError)


async def test_cancelling_leaves_the_server_at_once(llm_server, mounted):
    server = await llm_server([Reply(**REPLY, fault=Stall(2))])
    provider = await mounted(server)
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in provider.stream_complete(ask()):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(server.wait_for, lambda s: s.requests[0].client_left)


async def test_an_aborted_stream_is_reported_as_such(llm_server, mounted, coordinator, heard):
    server = await llm_server([Reply(**REPLY)])
    provider = await mounted(server)
    stream = provider.stream_complete(ask())
    await anext(stream)
    await stream.aclose()
    assert heard[-1][1]["status"] == "aborted"
