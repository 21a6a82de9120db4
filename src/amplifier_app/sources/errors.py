"""Errors about module sources: one class for the app and for the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.errors import ModuleError
from amplifier_core.module_sources import ModuleLoadError


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
