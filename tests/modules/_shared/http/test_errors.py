"""What a service's refusal becomes: the class says what to do about it."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from amplifier_core.llm_errors import (
    AccessDeniedError,
    AuthenticationError,
    ConfigurationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    NotFoundError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
)
from amplifier_modules._shared.http.errors import error_for_body, error_for_response, retry_after

PROMPT_TOO_LONG = '{"error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 5"}}'
NO_CREDIT = '{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}'


def refused(status: int, body: str = "", **headers: str) -> LLMError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_for_response(status, named, body, provider="acme", model="m")


@pytest.mark.parametrize(
    ("status", "body", "cls", "retryable"),
    [
        (400, "", InvalidRequestError, False),
        (400, PROMPT_TOO_LONG, ContextLengthError, False),
        (400, '{"error":{"code":"context_length_exceeded"}}', ContextLengthError, False),
        (400, '{"error":{"type":"exceed_context_size_error"}}', ContextLengthError, False),
        (400, '{"error":"input exceeds the context window"}', ContextLengthError, False),
        (400, '{"error":{"message":"max_tokens: 9 > 5"}}', InvalidRequestError, False),
        (400, NO_CREDIT, QuotaExceededError, False),
        (400, '{"error":{"code":"content_filter"}}', ContentFilterError, False),
        (401, "", AuthenticationError, False),
        (402, "", QuotaExceededError, False),
        (403, "", AccessDeniedError, False),
        (403, '{"error":{"type":"billing_error"}}', QuotaExceededError, False),
        (404, "", NotFoundError, False),
        (405, "", InvalidRequestError, False),
        (408, "", LLMTimeoutError, True),
        (409, "", ProviderUnavailableError, True),
        (413, "", ContextLengthError, False),
        (422, "", InvalidRequestError, False),
        (425, "", ProviderUnavailableError, True),
        (429, "", RateLimitError, True),
        (429, '{"error":{"code":"insufficient_quota"}}', QuotaExceededError, False),
        (429, '{"error":{"message":"too many tokens per minute"}}', RateLimitError, True),
        (500, "", ProviderUnavailableError, True),
        (500, '{"error":{"message":"bug in context length code"}}', ProviderUnavailableError, True),
        (502, "<html>bad gateway</html>", ProviderUnavailableError, True),
        (503, "", ProviderUnavailableError, True),
        (504, "", ProviderUnavailableError, True),
        (529, "", ProviderUnavailableError, True),
        (302, "", ConfigurationError, False),
    ],
)
def test_statuses_have_their_classes(status: int, body: str, cls: type[LLMError], retryable: bool):
    error = refused(status, body)
    assert type(error) is cls
    assert error.retryable is retryable
    assert error.status_code == status
    assert (error.provider, error.model) == ("acme", "m")


@pytest.mark.parametrize(
    ("kind", "cls", "retryable"),
    [
        ("overloaded_error", ProviderUnavailableError, True),
        ("api_error", ProviderUnavailableError, True),
        ("rate_limit_error", RateLimitError, True),
        ("timeout_error", ProviderUnavailableError, True),
        ("server_error", ProviderUnavailableError, True),
        ("invalid_request_error", InvalidRequestError, False),
        ("authentication_error", AuthenticationError, False),
        ("permission_error", AccessDeniedError, False),
        ("not_found_error", NotFoundError, False),
        ("billing_error", QuotaExceededError, False),
        ("never heard of", ProviderUnavailableError, True),
    ],
)
def test_an_error_in_a_stream_is_known_by_its_type(kind: str, cls: type[LLMError], retryable: bool):
    body = {"type": "error", "error": {"type": kind, "message": "why"}}
    error = error_for_body(body, provider="acme", model="m")
    assert type(error) is cls
    assert error.retryable is retryable
    assert "why" in str(error)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ('{"error": {"message": "the reason"}}', "the reason"),
        ('{"error": "the reason"}', "the reason"),
        ('{"message": "the reason"}', "the reason"),
        ('{"detail": "the reason"}', "the reason"),
        ('{"detail": [{"loc": ["x"], "msg": "the reason"}]}', "the reason"),
        ("the\n  reason", "the reason"),
        ("", "no reason given"),
        ("{}", "no reason given"),
        ("[1, 2]", "[1, 2]"),
        ("null", "null"),
    ],
)
def test_the_reason_is_found_in_every_shape(body: str, shown: str):
    assert shown in str(refused(400, body))


def test_a_long_reason_is_cut():
    assert len(str(refused(400, "x" * 100_000))) < 2200


def test_messages_say_what_to_do_next():
    assert "API key" in str(refused(401))
    assert "base_url" in str(refused(404))
    assert "base_url" in str(refused(301, location="https://elsewhere.invalid/"))


def test_the_service_may_forbid_another_attempt():
    assert not refused(529, x_should_retry="false").retryable
    assert refused(529, x_should_retry="true").retryable
    assert not refused(400, x_should_retry="true").retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
        ({"retry-after": "1 Jan 2026 1:1:1 +99999999999999999999"}, None),
    ],
)
def test_the_pause_is_read_from_its_headers(headers: dict[str, Any], seconds: float | None):
    assert retry_after(headers) == seconds


def test_the_pause_may_be_a_date(monkeypatch: pytest.MonkeyPatch):
    now = 1_800_000_000.25
    monkeypatch.setattr(time, "time", lambda: now)
    assert retry_after({"retry-after": formatdate(now + 30, usegmt=True)}) == 29.75
    assert retry_after({"retry-after": formatdate(now - 30, usegmt=True)}) == 0.0
    error = refused(429, retry_after=formatdate(now + 30, usegmt=True))
    assert error.retry_after == 29.75


@pytest.mark.parametrize("now", [5.0, 7_270_000_000.0])
def test_a_wrong_clock_does_not_change_the_pause(now: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: now)
    of_service = 1_800_000_000
    until = formatdate(of_service + 30, usegmt=True)
    assert retry_after({"retry-after": until, "date": formatdate(of_service)}) == 30.0
    assert retry_after({"retry-after": until, "date": "x"}) == max(0.0, of_service + 30 - now)
