"""Sources that cannot be had: one error for the app and for the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.errors import ModuleError
from amplifier_core.module_sources import ModuleLoadError


class SourceError(ModuleError, ModuleLoadError):
    """A source that the plan names cannot be fetched, installed or understood.

    Not the kernel's `ModuleNotFoundError`: on that one the loader would look for an
    installed module of the same name, and quietly run another one than the plan says.
    """


class DriftError(SourceError):
    """A module is not what its lock says."""


class SourceErrors(SourceError):
    """Several sources that cannot be had.

    Attributes:
        failures: Each of them.
    """

    def __init__(self, failures: Sequence[SourceError]) -> None:
        listed = "\n".join(map(str, failures))
        super().__init__(f"{len(failures)} modules cannot be had:\n{listed}")
        self.failures = tuple(failures)
