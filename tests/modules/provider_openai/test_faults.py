"""Faults: one owner of retries, exact numbers of attempts, nothing truncated called success."""

import pytest

from amplifier_core import llm_errors as errors
from amplifier_core.message_models import ChatResponse
from tests.modules.provider_openai.conftest import ask
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Malformed,
    Reply,
    ResetAfter,
    Stall,
    Status,
    ToolCall,
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
