"""Checks and results, and the inspection of callables."""

import asyncio
import functools
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from amplifier_core.module_checks import MANY
from amplifier_core.validation.base import (
    ValidationCheck,
    ValidationResult,
    check_on_session_ready,
    is_async,
    positional_arity,
)


def test_a_result_without_checks_passes() -> None:
    result = ValidationResult("tool", "somewhere")
    assert result.passed
    assert result.summary() == "PASSED: 0/0 checks passed (0 errors, 0 warnings)"


def test_only_failed_errors_fail_a_result() -> None:
    result = ValidationResult("tool", "somewhere")
    result.add(ValidationCheck("a", True, "fine"))
    result.add(ValidationCheck("b", True, "passed, though of note", "warning"))
    result.add(ValidationCheck("c", False, "could be better", "warning"))
    result.add(ValidationCheck("d", False, "by the way", "info"))
    assert result.passed
    assert result.warnings == [result.checks[2]]
    result.add(ValidationCheck("e", False, "broken"))
    assert not result.passed
    assert result.errors == [result.checks[4]]
    assert result.summary() == "FAILED: 2/5 checks passed (1 errors, 1 warnings)"


def test_results_accept_positional_arguments() -> None:
    check = ValidationCheck("a", True, "fine", "info")
    result = ValidationResult("tool", "somewhere", [check])
    assert (result.module_type, result.module_path, result.checks) == ("tool", "somewhere", [check])


async def _coroutine(a: Any, b: Any = None) -> None: ...


def _function(a: Any) -> None: ...


@functools.wraps(_coroutine)
def _wrapper(*args: Any) -> Any:
    return _coroutine(*args)


class _AsyncCallable:
    async def __call__(self, event: str, data: Any) -> None: ...

    async def method(self) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        _coroutine,
        functools.partial(functools.partial(_coroutine, 1), 2),
        _wrapper,
        _AsyncCallable(),
        _AsyncCallable().method,
        AsyncMock(),
    ],
    ids=["coroutine", "partial", "wrapper", "object", "method", "mock"],
)
def test_async_callables_are_recognised(function: Any) -> None:
    assert is_async(function)


@pytest.mark.parametrize("function", [_function, functools.partial(_function), print, Mock(), dict])
def test_sync_callables_are_recognised(function: Any) -> None:
    assert not is_async(function)


@pytest.mark.parametrize(
    ("function", "arity"),
    [
        (_coroutine, 2),
        (_AsyncCallable().method, 0),
        (_AsyncCallable(), 2),
        (lambda *args: None, MANY),
        (lambda a, **kwargs: None, MANY),
        (lambda a, *, b: None, 2),
        (dict.update, MANY),
    ],
)
def test_arity_counts_named_parameters(function: Any, arity: int) -> None:
    assert positional_arity(function) == arity


class _Module:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_session_ready_is_valid_if_missing_or_correct() -> None:
    async def ready(coordinator: Any) -> None: ...

    assert check_on_session_ready(_Module()) is None
    assert check_on_session_ready(_Module(on_session_ready=ready)) is None


def _sync_ready(coordinator: Any) -> None: ...


async def _ready_without_argument() -> None: ...


async def _ready_with_optional_argument(coordinator: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("ready", "found"),
    [
        (_sync_ready, "is not async"),
        (_ready_without_argument, "takes no required argument"),
        (_ready_with_optional_argument, "takes no required argument"),
        ("not even callable", "is not async"),
    ],
)
def test_session_ready_that_cannot_be_awaited_with_a_coordinator_fails(
    ready: Any, found: str
) -> None:
    check = check_on_session_ready(_Module(on_session_ready=ready))
    assert check is not None
    assert (check.name, check.passed, check.severity) == ("on_session_ready_async", False, "error")
    assert found in check.message


async def test_the_log_of_one_task_is_not_mixed_with_that_of_another() -> None:
    import logging

    from amplifier_core._foreign import warnings_logged

    logger = logging.getLogger("sample.module")
    turns = asyncio.Barrier(2)

    async def listen(word: str) -> list[str]:
        with warnings_logged() as messages:
            await turns.wait()
            logger.warning("%s one", word)
            logger.info("%s not worth it", word)
            await turns.wait()
            logger.error("%s two", word)
            await turns.wait()
        return messages

    heard = await asyncio.gather(listen("a"), listen("b"))
    assert heard == [["a one", "a two"], ["b one", "b two"]]
    assert not any("Collector" in type(h).__name__ for h in logging.getLogger().handlers)
