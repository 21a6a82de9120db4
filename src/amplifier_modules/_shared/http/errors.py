"""Maps failures of a model service to the kernel's errors.

    400, 405, 422 …   InvalidRequestError     ContextLengthError, QuotaExceededError or
    413               ContextLengthError      ContentFilterError where the body says so
    401 / 403 / 404   AuthenticationError / AccessDeniedError / NotFoundError
    402               QuotaExceededError
    408               LLMTimeoutError         retryable
    409, 425          ProviderUnavailable     retryable
    429               RateLimitError          retryable; QuotaExceededError if the account is empty
    5xx               ProviderUnavailable     retryable (529 is overload)
    3xx               ConfigurationError      redirects are not followed

An error event inside a stream has no status; the error type in its body is used instead.
Failures below HTTP (`TransportFaults`):

    not reached in time, silent, past the time limit    LLMTimeoutError    retryable
    refused, unknown host, broken off, bad protocol     NetworkError       retryable
    broken off while the answer streamed                StreamError        retryable
    certificate not trusted                             NetworkError       not retryable
    address or header that cannot be sent               ConfigurationError
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, cast

from amplifier_core.llm_errors import (
    AccessDeniedError,
    AuthenticationError,
    ConfigurationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    NetworkError,
    NotFoundError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
    StreamError,
)
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import without_login

_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "api_error": 500,
    "unavailable_error": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_CLASS_OF_STATUS: dict[int, type[LLMError]] = {
    401: AuthenticationError,
    402: QuotaExceededError,
    403: AccessDeniedError,
    404: NotFoundError,
    408: LLMTimeoutError,
    409: ProviderUnavailableError,
    413: ContextLengthError,
    425: ProviderUnavailableError,
    429: RateLimitError,
}
_WHAT: dict[type[LLMError], str] = {
    AuthenticationError: "rejected the API key",
    AccessDeniedError: "denied access",
    NotFoundError: "does not have the model or the address",
    QuotaExceededError: "refused the request because of the account's credit or limits",
    RateLimitError: "rate limit",
    ProviderUnavailableError: "is unavailable",
    LLMTimeoutError: "timed out",
    ContextLengthError: "cannot take a request of this length",
    ContentFilterError: "blocked the request by its content filter",
}
"""The service's reaction, by the type of the error; anything else was refused."""

_WHAT_OF_STATUS = {
    **dict.fromkeys(range(500, 600), "had a server error"),
    503: _WHAT[ProviderUnavailableError],
    529: "is overloaded",
}
"""The report of an unavailable service, by status."""

_NEXT_STEP: dict[type[LLMError], str] = {
    AccessDeniedError: "the key is valid but may not do this; check its permissions",
    NotFoundError: "check the model name and base_url",
    QuotaExceededError: "check the account's credit and limits",
}
_CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_CONTEXT_PHRASES = (
    "prompt is too long",
    "input is too long",
    "context length",
    "context window",
    "context size",
    "context limit",
    "maximum context",
    "too many tokens",
    "too many total text bytes",
)
_QUOTA_CODES = {"insufficient_quota", "billing_error", "billing_hard_limit_reached"}
_QUOTA_PHRASES = ("credit balance", "exceeded your current quota", "spending limit", "usage limits")
_FILTER_CODES = {"content_filter", "content_policy_violation"}
_FILTER_PHRASES = ("content filter", "content management policy", "content filtering policy")
_MESSAGE_LIMIT = 2000


def error_for_response(
    status: int,
    headers: Mapping[str, str],
    body: str,
    *,
    provider: str,
    model: str | None,
) -> LLMError:
    """The error for an answer whose status is not 2xx.

    Args:
        status: HTTP status.
        headers: The answer's headers, looked up in lower case.
        body: The body, possibly truncated.
        provider: Name of the provider, for the message.
        model: The requested model.
    """
    if 300 <= status < 400:
        target = headers.get("location", "an unnamed address")
        return ConfigurationError(
            f"{provider} answered with a redirect ({status}) to {target}; redirects are not "
            "followed: set base_url to the service's own address",
            provider=provider,
            model=model,
            status_code=status,
        )
    error = error_for_body(_decoded(body), status, provider=provider, model=model)
    error.retry_after = retry_after(headers)
    if headers.get("x-should-retry") == "false":
        error.retryable = False
    return error


def unexpected_answer(
    what: str,
    *,
    provider: str,
    model: str | None = None,
    status: int | None = 200,
    kind: type[LLMError] = ProviderUnavailableError,
) -> LLMError:
    """The error for an answer of another kind of service, which another attempt would get again."""
    return kind(
        f"{provider} {what}; check base_url",
        provider=provider,
        model=model,
        status_code=status,
        retryable=False,
    )


def error_for_body(
    body: Any, status: int | None = None, *, provider: str, model: str | None
) -> LLMError:
    """The error for an error object, as the body of an answer or inside a stream.

    Args:
        body: The decoded JSON, or text if it is not JSON. Supported are ``{"error": {...}}``,
            ``{"error": str}``, ``{"message": str}`` and ``{"detail": ...}``.
        status: HTTP status; None when the error came inside a stream.
    """
    kinds, message = _read(body)
    code = status or next((_STATUS_OF_TYPE[k] for k in kinds if k in _STATUS_OF_TYPE), 500)
    cls = _class_for(code, kinds, message.lower())
    reported = f" ({status})" if status else ""
    what = _WHAT.get(cls, "refused the request")
    if cls is ProviderUnavailableError:
        what = _WHAT_OF_STATUS.get(code, what)
    text = f"{provider} {what}{reported}: {message or 'no reason given'}"
    if step := _NEXT_STEP.get(cls):
        text += f"; {step}"
    return cls(text, provider=provider, model=model, status_code=status or code)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the service asks to wait, from `retry-after-ms` or either form of `Retry-After`.

    A date is compared with the service's own clock, if it sends that in `Date`.

    Returns:
        None if there is no such header or its value is invalid.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            until, now = parse_http_date(value), parse_http_date(headers.get("date"))
            if until is None:
                continue
            seconds = until - (time.time() if now is None else now)
        if seconds == seconds and seconds != float("inf"):
            return max(0.0, seconds)
    return None


def parse_http_date(date: str | None) -> float | None:
    """Return the seconds since 1970; None if it is not a date."""
    # Most runs need no date, and this is a hundredth of a short one.
    from email.utils import parsedate_to_datetime

    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


class TransportFaults(NamedTuple):
    """Translates errors of httpx and time limits; a context manager around one exchange.

    Args:
        url: Address for the message.
        connect_timeout: Seconds, for the message.
        idle_timeout: Seconds, for the message.
        streaming: Whether the answer has begun.
    """

    provider: str
    model: str | None
    url: str
    connect_timeout: float
    idle_timeout: float
    streaming: bool = False

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and (named := self.as_kernel_error(error)) is not error:
            raise named from error

    def as_kernel_error(self, error: Exception) -> Exception:
        """The kernel's error for `error`, or `error` itself if it is not a transport fault."""
        # httpx is not imported to find that nothing is its own. The SDK of Anthropic has a copy of it.
        kinds = {
            kind.__name__
            for kind in type(error).__mro__
            if kind.__module__.partition(".")[0] in ("httpx", "httpx2")
        }
        if isinstance(error, TimeoutError):
            return self._error(LLMTimeoutError, "did not finish within its time limit")
        if kinds & {"InvalidURL", "UnsupportedProtocol", "LocalProtocolError"}:
            what = f"cannot be called: {error}; check base_url and the API key"
            return self._error(ConfigurationError, what)
        if "ConnectTimeout" in kinds:
            what = f"could not be reached{self._through()} within {self.connect_timeout:g} s"
            return self._error(LLMTimeoutError, what)
        if "TimeoutException" in kinds:
            return self._error(LLMTimeoutError, f"was silent for {self.idle_timeout:g} s")
        if kinds & {"ConnectError", "ProxyError"}:
            # A proxy's reason begins with its status, such as 407: another attempt would be refused, too.
            is_refused = "ProxyError" in kinds and str(error).startswith("4")
            what = f"could not be reached{self._through()}: {_reason(error)}"
            named = self._error(NetworkError, what)
            named.retryable = not (is_refused or _caused_by_certificate(error))
            return named
        if kinds & {"HTTPError", "StreamError"}:
            if self.streaming:
                return self._error(StreamError, f"cut the answer off: {_reason(error)}")
            return self._error(NetworkError, f"closed the connection: {_reason(error)}")
        return error

    def without_progress(self) -> LLMError:
        """The error for an answer that is alive but does not go on."""
        what = f"sent no part of its answer for {self.idle_timeout:g} s"
        return self._error(LLMTimeoutError, what)

    def _through(self) -> str:
        """Which proxy was used, if any."""
        from amplifier_modules._shared.http.connections import proxy_for

        proxy = proxy_for(self.url)
        return f" through the proxy {without_login(proxy)}" if proxy else ""

    def _error(self, cls: type[LLMError], what: str) -> LLMError:
        text = f"{self.provider} at {self.url} {what}"
        return cls(text, provider=self.provider, model=self.model)


def _reason(error: Exception) -> str:
    """Why a connection failed, in the words of the system and without its error number."""
    cause: BaseException | None = error
    # The numbers of TLS errors are not those of the system.
    while cause is not None and not isinstance(cause, ssl.SSLError):
        if isinstance(cause, socket.gaierror):
            return "unknown host name"
        if isinstance(cause, OSError) and cause.errno and cause.errno in errno.errorcode:
            reason = os.strerror(cause.errno)
            return reason[:1].lower() + reason[1:]
        cause = cause.__cause__ or cause.__context__
    text = re.sub(r"\[Errno -?\d+\] ?", "", str(error))
    return text or type(error).__name__


def _caused_by_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _class_for(status: int, kinds: Iterable[str], message: str) -> type[LLMError]:
    codes = set(kinds)
    if status in (400, 402, 403, 413, 422, 429) or codes:
        if codes & _QUOTA_CODES or _any_in(_QUOTA_PHRASES, message):
            return QuotaExceededError
        if codes & _CONTEXT_CODES or (
            status in (400, 413, 422) and _any_in(_CONTEXT_PHRASES, message)
        ):
            return ContextLengthError
        if codes & _FILTER_CODES or (status == 400 and _any_in(_FILTER_PHRASES, message)):
            return ContentFilterError
    if status >= 500:
        return ProviderUnavailableError
    return _CLASS_OF_STATUS.get(status, InvalidRequestError)


def _any_in(phrases: Iterable[str], message: str) -> bool:
    return any(phrase in message for phrase in phrases)


def _decoded(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _read(body: Any) -> tuple[list[str], str]:
    """The error's types and codes, and its message."""
    if not isinstance(body, Mapping):
        return [], _short(body)
    outer = cast("Mapping[str, Any]", body)
    inner = outer.get("error", outer)
    if not isinstance(inner, Mapping):
        return [], _short(inner)
    error = cast("Mapping[str, Any]", inner)
    kinds = [v for key in ("code", "type") if isinstance(v := error.get(key), str)]
    message = error.get("message") or error.get("detail") or (dict(error) if error else "")
    return kinds, _short(message)


def _short(message: Any) -> str:
    if isinstance(message, str):
        text = " ".join(message.split())
    else:
        text = json.dumps(message, ensure_ascii=False, default=str)
    return text if len(text) <= _MESSAGE_LIMIT else f"{text[:_MESSAGE_LIMIT]} … (cut)"
