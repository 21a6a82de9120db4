"""Common parts of the validators: checks, results, and inspection of callables."""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from amplifier_core.package_import import import_from_path as import_module_from_path

__all__ = [
    "CheckReport",
    "Severity",
    "ValidationCheck",
    "ValidationResult",
    "check_on_session_ready",
    "import_module_from_path",
    "is_async",
    "positional_arity",
]

Severity = Literal["error", "warning", "info"]

MANY = sys.maxsize
"""Arity of a callable that takes any number of arguments."""


@dataclass
class ValidationCheck:
    """The outcome of one check.

    Attributes:
        name: stable identifier, such as ``mount_exists``.
        passed: whether the check passed.
        message: what was found and, after a failure, how to fix it.
        severity: severity of a failure; only an ``error`` makes the whole result fail.
    """

    name: str
    passed: bool
    message: str
    severity: Severity = "error"


class CheckReport:
    """A list of checks and its evaluation; base class of the validators' results."""

    checks: list[ValidationCheck]

    @property
    def passed(self) -> bool:
        """True if no check of severity ``error`` failed."""
        return not self.errors

    @property
    def errors(self) -> list[ValidationCheck]:
        """The failed checks of severity ``error``."""
        return [check for check in self.checks if not check.passed and check.severity == "error"]

    @property
    def warnings(self) -> list[ValidationCheck]:
        """The failed checks of severity ``warning``."""
        return [check for check in self.checks if not check.passed and check.severity == "warning"]

    def add(self, check: ValidationCheck) -> None:
        """Append a check."""
        self.checks.append(check)

    def summary(self) -> str:
        """One line, such as ``PASSED: 6/7 checks passed (0 errors, 1 warnings)``."""
        verdict = "PASSED" if self.passed else "FAILED"
        good = sum(check.passed for check in self.checks)
        return (
            f"{verdict}: {good}/{len(self.checks)} checks passed "
            f"({len(self.errors)} errors, {len(self.warnings)} warnings)"
        )


@dataclass
class ValidationResult(CheckReport):
    """The checks of one module.

    Attributes:
        module_type: kind it was checked as (``provider``, ``tool``, …).
        module_path: folder, file or dotted name that was checked.
        checks: in the order they were run.
    """

    module_type: str
    module_path: str
    checks: list[ValidationCheck] = field(default_factory=list[ValidationCheck])


def is_async(function: Callable[..., Any]) -> bool:
    """Whether ``function`` is async, as far as inspection shows.

    Handles ``functools.partial``, ``functools.wraps``, async mocks and objects with an async
    ``__call__``.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    candidates = (function, type(function).__call__)
    return any(inspect.iscoroutinefunction(candidate) for candidate in candidates)


def positional_arity(function: Callable[..., Any]) -> int:
    """Number of arguments of ``function``; ``MANY`` if it takes any number or has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return MANY
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(parameter.kind in open_ended for parameter in parameters):
        return MANY
    return len(parameters)


def check_on_session_ready(module: object) -> ValidationCheck | None:
    """A failed check if the module's ``on_session_ready`` cannot be awaited with a coordinator.

    Returns:
        None if the function is missing or valid.
    """
    function = getattr(module, "on_session_ready", None)
    if function is None:
        return None
    if not is_async(function):
        found = "is not async"
    elif not _requires_an_argument(function):
        found = "takes no required argument"
    else:
        return None
    return ValidationCheck(
        "on_session_ready_async",
        passed=False,
        message=f"on_session_ready {found}; write `async def on_session_ready(coordinator)`",
    )


def _requires_an_argument(function: Callable[..., Any]) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(function).parameters.values()
    )
