"""Retries: which errors, how often, with which delays; and classification of errors."""

import asyncio
import random
from collections.abc import Callable

import pytest

from amplifier_core import utils
from amplifier_core.llm_errors import (
    AccessDeniedError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
)
from amplifier_core.utils.retry import RetryConfig, classify_error_message, retry_with_backoff


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays passed to asyncio.sleep, which returns immediately."""
    delays: list[float] = []

    async def sleep(delay: float) -> None:
        delays.append(delay)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return delays


class Flaky:
    """An operation that raises the given errors in order, then returns "done"."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def steady(max_retries: int = 5, **fields: object) -> RetryConfig:
    return RetryConfig(max_retries=max_retries, jitter=False, **fields)  # type: ignore[arg-type]


async def test_retryable_errors_are_retried_with_growing_capped_delays(slept: list[float]) -> None:
    operation = Flaky(*(RateLimitError("slow down") for _ in range(5)))
    assert await retry_with_backoff(operation, steady(max_delay=5.0)) == "done"
    assert slept == [1.0, 2.0, 4.0, 5.0, 5.0]


async def test_no_retries_means_one_attempt(slept: list[float]) -> None:
    operation = Flaky(RateLimitError("no"))
    with pytest.raises(RateLimitError):
        await retry_with_backoff(operation, RetryConfig(max_retries=0))
    assert operation.calls == 1
    assert slept == []


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("who"),
        QuotaExceededError("paid out"),
        RateLimitError("not retryable", retryable=False),
        ValueError("a bug"),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_other_errors_are_raised_immediately(
    slept: list[float], error: BaseException
) -> None:
    operation = Flaky(error)
    with pytest.raises(type(error)) as raised:
        await retry_with_backoff(operation)
    assert raised.value is error
    assert operation.calls == 1


@pytest.mark.parametrize(
    ("errors", "config", "expected"),
    [
        pytest.param([RateLimitError("", retry_after=9)], {"max_delay": 5.0}, [9.0], id="over-cap"),
        pytest.param([RateLimitError("", retry_after=0.5)], {}, [1.0], id="only-a-floor"),
        pytest.param(
            [RateLimitError("", retry_after=9)], {"honor_retry_after": False}, [1.0], id="ignored"
        ),
        pytest.param([RateLimitError("", retry_after=float("nan"))], {}, [1.0], id="nonsense-hint"),
        pytest.param(
            [ProviderUnavailableError("", delay_multiplier=3, retry_after=2)],
            {},
            [3.0],
            id="multiplier-before-floor",
        ),
        pytest.param(
            [ProviderUnavailableError("", delay_multiplier=0)], {}, [1.0], id="zero-multiplier"
        ),
        pytest.param(
            [ProviderUnavailableError("", delay_multiplier=float("inf"))],
            {},
            [1.0],
            id="infinite-multiplier",
        ),
    ],
)
async def test_delay_follows_the_hints_of_the_error(
    slept: list[float], errors: list[LLMError], config: dict[str, object], expected: list[float]
) -> None:
    await retry_with_backoff(Flaky(*errors), steady(**config))
    assert slept == expected


async def test_delay_growth_beyond_float_range_is_capped(slept: list[float]) -> None:
    operation = Flaky(*(RateLimitError("") for _ in range(1100)))
    await retry_with_backoff(operation, steady(max_retries=1100, max_delay=60.0))
    assert slept[-1] == 60.0


@pytest.mark.parametrize("pick", [min, max])
async def test_jitter_spreads_the_backoff_between_half_and_one_and_a_half(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, pick: Callable[[float, float], float]
) -> None:
    monkeypatch.setattr(random, "uniform", pick)
    await retry_with_backoff(Flaky(RateLimitError("")), RetryConfig(initial_delay=4.0))
    assert slept == [4.0 * pick(0.5, 1.5)]


async def test_an_interrupted_wait_does_not_call_again() -> None:
    operation = Flaky(RateLimitError("wait", retry_after=3600))
    waiting = asyncio.Event()

    async def on_retry(attempt: int, delay: float, error: LLMError) -> None:
        waiting.set()

    task = asyncio.create_task(retry_with_backoff(operation, on_retry=on_retry))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert operation.calls == 1


def test_config_defaults() -> None:
    config = RetryConfig()
    assert (config.max_retries, config.initial_delay, config.max_delay) == (3, 1.0, 60.0)
    assert (config.backoff_factor, config.jitter, config.honor_retry_after) == (2.0, 0.2, True)


def test_config_accepts_positional_arguments() -> None:
    config = RetryConfig(1, 2.0, 3.0, 4.0, False, False)
    assert (config.max_retries, config.initial_delay, config.max_delay) == (1, 2.0, 3.0)
    assert (config.backoff_factor, config.jitter, config.honor_retry_after) == (4.0, 0.0, False)
    assert repr(config) == (
        "RetryConfig(max_retries=1, initial_delay=2.0, max_delay=3.0, backoff_factor=4.0, "
        "jitter=False, honor_retry_after=False)"
    )


def test_config_cannot_be_changed_or_extended() -> None:
    config = RetryConfig()
    with pytest.raises(AttributeError):
        config.max_retries = 9  # type: ignore[misc]
    with pytest.raises(AttributeError):
        config.anything = 9  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        RetryConfig(attempts=9)  # type: ignore[call-arg]


def test_negative_retries_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"max_retries must be 0 or more \(got -1\)"):
        RetryConfig(max_retries=-1)


@pytest.mark.parametrize(("jitter", "reads"), [(0.7, 0.2), (0.0, 0.0)])
def test_a_float_jitter_is_deprecated_and_read_as_a_boolean(jitter: float, reads: float) -> None:
    with pytest.warns(DeprecationWarning, match="jitter"):
        assert RetryConfig(jitter=jitter).jitter == reads


def test_deprecated_names_set_fields_left_at_their_default() -> None:
    with pytest.warns(DeprecationWarning, match="RetryConfig") as caught:
        config = RetryConfig(min_delay=7.0, backoff_multiplier=3.0)
    assert len(caught) == 2
    assert (config.initial_delay, config.backoff_factor) == (7.0, 3.0)


def test_new_fields_take_precedence_over_deprecated_names() -> None:
    with pytest.warns(DeprecationWarning, match="RetryConfig"):
        config = RetryConfig(
            initial_delay=2.0, backoff_factor=4.0, min_delay=7.0, backoff_multiplier=3.0
        )
    assert (config.initial_delay, config.backoff_factor) == (2.0, 4.0)


def test_reading_a_deprecated_name_warns() -> None:
    config = RetryConfig(initial_delay=2.0, backoff_factor=3.0)
    with pytest.warns(DeprecationWarning, match="initial_delay"):
        assert config.min_delay == 2.0
    with pytest.warns(DeprecationWarning, match="backoff_factor"):
        assert config.backoff_multiplier == 3.0


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("", 401, AuthenticationError),
        ("", 403, AccessDeniedError),
        ("", 404, NotFoundError),
        ("", 413, ContextLengthError),
        ("context length", 429, RateLimitError),
        ("", 500, ProviderUnavailableError),
        ("rate limit", 529, ProviderUnavailableError),
        ("Maximum Context reached", None, ContextLengthError),
        ("too many tokens", 400, ContextLengthError),
        ("context length, and rate limit too", None, ContextLengthError),
        ("Rate limit reached", None, RateLimitError),
        ("Too many requests", None, RateLimitError),
        ("Invalid API key", 400, AuthenticationError),
        ("Unauthorized", None, AuthenticationError),
        ("authentication failed", None, AuthenticationError),
        ("model not found", None, NotFoundError),
        ("content filter", None, ContentFilterError),
        ("for safety reasons", None, ContentFilterError),
        ("request was blocked", 422, ContentFilterError),
        ("bad field", 400, InvalidRequestError),
        ("bad field", 422, InvalidRequestError),
        ("timed out", 408, LLMError),
        ("timed out", None, LLMError),
    ],
)
def test_error_messages_are_classified(
    message: str, status: int | None, expected: type[LLMError]
) -> None:
    assert classify_error_message(message, status_code=status, provider="any") is expected


def test_utils_reexports_every_public_name() -> None:
    from amplifier_core.utils import retry, truncate

    names = [*retry.__all__, *truncate.__all__]
    assert sorted(utils.__all__) == sorted(names)
    for module in (retry, truncate):
        for name in module.__all__:
            assert getattr(utils, name) is getattr(module, name)


async def test_a_mistake_in_code_is_not_retried(slept: list[float]) -> None:
    for mistake in (
        TypeError("x"),
        AttributeError("x"),
        NameError("x"),
        ImportError("x"),
        KeyError(1),
    ):
        inner = LLMError("wrapped", retryable=True)
        inner.__cause__ = mistake
        outer = RateLimitError("wrapped again")
        outer.__cause__ = inner
        for error in (inner, outer):
            operation = Flaky(error)
            with pytest.raises(LLMError):
                await retry_with_backoff(operation)
            assert (operation.calls, error.retryable) == (1, False)
    circular = LLMError("m", retryable=True)
    circular.__cause__ = circular
    other = LLMError("m", retryable=True)
    other.__cause__ = ValueError("an answer that is not JSON")
    assert (circular.retryable, other.retryable, slept) == (True, True, [])


def test_only_the_published_attributes_of_a_retry_config_are_read_only() -> None:
    class Own(RetryConfig):
        def __init__(self) -> None:
            super().__init__(max_retries=1)
            self.own = 3

    config = Own()
    assert (config.own, config.max_retries, hasattr(RetryConfig, "max_retries")) == (3, 1, True)
    for change in (lambda: setattr(config, "max_retries", 2), lambda: delattr(config, "jitter")):
        with pytest.raises(AttributeError, match="read-only"):
            change()
    assert "own" not in repr(config)
