"""Errors about module sources: one class for the app and for the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from amplifier_app.base.errors import ModuleError
from amplifier_core.module_sources import ModuleLoadError, ModuleNotFoundError

T = TypeVar("T")


class SourceError(ModuleError, ModuleLoadError):
    """A source in the plan cannot be fetched, installed or parsed.

    Not the kernel's `ModuleNotFoundError`, on which the loader would fall back to an installed
    module of the same name and silently run a different module than the plan specifies.
    """


class DriftError(SourceError):
    """A module differs from its lock entry."""


class SourceErrors(SourceError):
    """Several sources are unavailable.

    Attributes:
        failures: One error for each source.
    """

    def __init__(self, failures: Sequence[SourceError]) -> None:
        listed = "\n".join(map(str, failures))
        super().__init__(f"{len(failures)} modules are unavailable:\n{listed}")
        self.failures = tuple(failures)


def results_or_raise(
    results: Sequence[T | BaseException], to_error: Callable[[int, SourceError], SourceError]
) -> list[T]:
    """Return what was fetched of several sources.

    Args:
        results: The result of each source, or its exception.
        to_error: Makes the error for a source, given its position and what was raised.

    Raises:
        SourceError: At least one of them is unavailable; the error names all of them.
    """
    fetched: list[T] = []
    failures: list[SourceError] = []
    for number, result in enumerate(results):
        if isinstance(result, (SourceError, ModuleNotFoundError)):
            error = result if isinstance(result, SourceError) else SourceError(str(result))
            failures.append(to_error(number, error))
        elif isinstance(result, BaseException):
            raise result
        else:
            fetched.append(result)
    if failures:
        raise SourceErrors(failures) if len(failures) > 1 else failures[0]
    return fetched
