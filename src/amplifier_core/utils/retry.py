"""Retry model calls, and classify errors by their message."""

import asyncio
import math
import random
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeGuard, TypeVar

from amplifier_core.llm_errors import (
    AccessDeniedError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)

__all__ = ["RetryConfig", "classify_error_message", "retry_with_backoff"]

T = TypeVar("T")

_INITIAL_DELAY: Final = 1.0
_BACKOFF_FACTOR: Final = 2.0
_JITTER_SPREAD: Final = (0.5, 1.5)
_JITTER_READ_AS: Final = 0.2


class RetryConfig:
    """The number and the delays (in seconds) of retries of a call; read-only.

    Args:
        max_retries: retries after the first attempt, so that a call is made at most ``max_retries + 1`` times.
        initial_delay: delay before the first retry.
        max_delay: upper limit of the delay (a server's ``retry_after`` may exceed it).
        backoff_factor: factor by which the delay grows with each retry.
        jitter: whether to multiply each delay by a random factor of 0.5 to 1.5 (default: True).
            A float is deprecated: non-zero means True. The attribute reads as 0.2 (on) or 0.0 (off).
        honor_retry_after: whether to wait at least the ``retry_after`` of the error.
        min_delay: deprecated name of ``initial_delay``.
        backoff_multiplier: deprecated name of ``backoff_factor``.

    Raises:
        ValueError: ``max_retries`` is negative.
    """

    max_retries: int = 3
    initial_delay: float = _INITIAL_DELAY
    max_delay: float = 60.0
    backoff_factor: float = _BACKOFF_FACTOR
    jitter: float = _JITTER_READ_AS
    honor_retry_after: bool = True

    def __init__(
        self,
        max_retries: int = 3,
        initial_delay: float = _INITIAL_DELAY,
        max_delay: float = 60.0,
        backoff_factor: float = _BACKOFF_FACTOR,
        jitter: bool | float | None = None,
        honor_retry_after: bool = True,
        min_delay: float | None = None,
        backoff_multiplier: float | None = None,
    ) -> None:
        if max_retries < 0:
            raise ValueError(f"max_retries must be 0 or more (got {max_retries})")
        if min_delay is not None:
            _warn_renamed("min_delay", "initial_delay")
            initial_delay = min_delay if initial_delay == _INITIAL_DELAY else initial_delay
        if backoff_multiplier is not None:
            _warn_renamed("backoff_multiplier", "backoff_factor")
            if backoff_factor == _BACKOFF_FACTOR:
                backoff_factor = backoff_multiplier
        if isinstance(jitter, float):
            warnings.warn(
                "RetryConfig(jitter=<float>) is deprecated; pass True or False",
                DeprecationWarning,
                stacklevel=2,
            )
        is_jittered = True if jitter is None else bool(jitter)
        vars(self).update(
            max_retries=max_retries,
            initial_delay=float(initial_delay),
            max_delay=float(max_delay),
            backoff_factor=float(backoff_factor),
            jitter=_JITTER_READ_AS if is_jittered else 0.0,
            honor_retry_after=bool(honor_retry_after),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self) is RetryConfig or name in RetryConfig.__annotations__:
            raise AttributeError(f"RetryConfig is read-only: cannot set {name}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in RetryConfig.__annotations__:
            raise AttributeError(f"RetryConfig is read-only: cannot delete {name}")
        super().__delattr__(name)

    @property
    def min_delay(self) -> float:
        """Deprecated name of :attr:`initial_delay`."""
        _warn_renamed("min_delay", "initial_delay")
        return self.initial_delay

    @property
    def backoff_multiplier(self) -> float:
        """Deprecated name of :attr:`backoff_factor`."""
        _warn_renamed("backoff_multiplier", "backoff_factor")
        return self.backoff_factor

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in RetryConfig.__annotations__}
        values["jitter"] = bool(self.jitter)
        return f"RetryConfig({', '.join(f'{name}={value}' for name, value in values.items())})"


def _warn_renamed(old: str, new: str) -> None:
    warnings.warn(f"RetryConfig.{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)


async def retry_with_backoff(
    operation: Callable[[], Awaitable[T]],
    config: RetryConfig | None = None,
    *,
    on_retry: Callable[[int, float, LLMError], Awaitable[Any]] | None = None,
) -> T:
    """Await ``operation()`` until it succeeds, fails permanently, or runs out of retries.

    Only an :class:`LLMError` with ``retryable`` set is retried; other exceptions propagate
    immediately. ``on_retry(attempt, delay, error)`` is awaited before each sleep, with ``attempt``
    starting at 1 and ``delay`` in seconds.

    Returns:
        The result of the operation.

    Raises:
        LLMError: the error of the last attempt, unchanged.
        Exception: any other exception of the operation.
    """
    settings = config or RetryConfig()
    attempt = 0
    while True:
        try:
            return await operation()
        except LLMError as error:
            if not error.retryable or attempt >= settings.max_retries:
                raise
            delay = _delay_after(error, attempt, settings)
            attempt += 1
            if on_retry is not None:
                await on_retry(attempt, delay, error)
        # Outside the except block, so that a cancelled sleep does not have the error as its context.
        await asyncio.sleep(delay)


def _delay_after(error: LLMError, failures: int, config: RetryConfig) -> float:
    """Seconds to wait after ``error``, with ``failures`` failed attempts before it."""
    try:
        delay = config.initial_delay * config.backoff_factor**failures
    except OverflowError:
        delay = math.inf
    delay = min(delay, config.max_delay)
    if _is_positive_number(error.delay_multiplier):
        delay *= error.delay_multiplier
    if config.jitter:
        delay *= random.uniform(*_JITTER_SPREAD)
    # Applied last: never retry earlier than the server allows.
    if config.honor_retry_after and _is_positive_number(error.retry_after):
        delay = max(delay, error.retry_after)
    return delay


def _is_positive_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


_BY_STATUS: Final[dict[int, type[LLMError]]] = {
    401: AuthenticationError,
    403: AccessDeniedError,
    404: NotFoundError,
    413: ContextLengthError,
    429: RateLimitError,
}

# Order matters: first match wins.
_BY_TEXT: Final[tuple[tuple[tuple[str, ...], type[LLMError]], ...]] = (
    (("context length", "too many tokens", "maximum context"), ContextLengthError),
    (("rate limit", "too many requests"), RateLimitError),
    (("authentication", "api key", "unauthorized"), AuthenticationError),
    (("not found",), NotFoundError),
    (("content filter", "safety", "blocked"), ContentFilterError),
)


def classify_error_message(
    message: str, *, status_code: int | None = None, provider: str | None = None
) -> type[LLMError]:
    """The error class for a vendor's message, by HTTP status if it is specific, otherwise by wording.

    Args:
        message: the vendor's error text.
        status_code: HTTP status of the response, if there was one.
        provider: name of the provider; not used.

    Returns:
        A subclass of :class:`LLMError`, or ``LLMError`` itself if nothing matches.
    """
    if status_code in _BY_STATUS:
        return _BY_STATUS[status_code]
    if status_code is not None and status_code >= 500:
        return ProviderUnavailableError
    text = message.lower()
    for needles, error_class in _BY_TEXT:
        if any(needle in text for needle in needles):
            return error_class
    return InvalidRequestError if status_code in (400, 422) else LLMError
