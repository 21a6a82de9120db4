"""Errors of loading and mounting a module, and the reason codes in events.

module_sources.ModuleNotFoundError
└── NotInstalledError        the module is not installed; also a ValueError
module_sources.ModuleLoadError
├── ModuleImportError        its code cannot be imported; also an ImportError
├── ModuleMountError         its mount function raised
└── ModuleValidationError    it violates the contract of its kind
Exception
└── NothingMountedError      its mount function returned without mounting anything
RuntimeError
└── RequiredModuleError      the session's orchestrator or context cannot be mounted

Public: apps catch these errors to explain them to the user.
"""

import builtins
from collections.abc import Sequence
from typing import Protocol

from amplifier_core.module_sources import ModuleLoadError
from amplifier_core.module_sources import ModuleNotFoundError as SourceNotFoundError

MODULE_FAILURE_REASONS = frozenset(
    {
        "invalid_package_layout",
        "missing_source",
        "invalid_entry_point",
        "invalid_module_metadata",
        "validation_failed",
        "unknown",
    }
)


MISCONFIGURED = "is not configured correctly: "
"""In the message of a `ModuleMountError`, before that of a `ConfigurationError` that the module raised."""


class FailedCheck(Protocol):
    """A check as a message shows it."""

    name: str
    message: str


class NotInstalledError(SourceNotFoundError, ValueError):
    """A module is neither installed nor on ``sys.path``."""


class ModuleImportError(ModuleLoadError, ImportError):
    """A module cannot be imported; the cause is the exception its code raised."""


class ModuleMountError(ModuleLoadError):
    """A module's mount function raised; the cause is that exception."""


class NothingMountedError(Exception):
    """A module's mount function mounted nothing, usually because credentials are missing."""


class ModuleValidationError(ModuleLoadError):
    """A module violates the contract of its kind.

    Attributes:
        reason_code: One of `MODULE_FAILURE_REASONS`.
    """

    def __init__(self, message: str, *, reason_code: str = "validation_failed") -> None:
        super().__init__(message)
        self.reason_code = reason_code


def validation_failure(module_id: str, failed: Sequence[FailedCheck]) -> ModuleValidationError:
    """Create the error for a module that failed these checks."""
    listed = "; ".join(f"{check.name}: {check.message}" for check in failed)
    return ModuleValidationError(f"Module '{module_id}' failed validation: {listed}")


class RequiredModuleError(RuntimeError):
    """A session's orchestrator or context cannot be mounted.

    Attributes:
        kind: ``"orchestrator"`` or ``"context"``.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def module_failure_reason(error: BaseException) -> str:
    """The entry of `MODULE_FAILURE_REASONS` for an exception."""
    if isinstance(error, (ModuleImportError, ModuleMountError)) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModuleValidationError):
        return error.reason_code
    if isinstance(error, (SourceNotFoundError, FileNotFoundError)):
        return "missing_source"
    if isinstance(error, AttributeError) and "mount" in str(error):
        return "invalid_entry_point"
    return "unknown"


def missing_import(error: BaseException | None) -> str:
    """Name of the missing package that made a module fail; empty for other failures."""
    while error is not None:
        if isinstance(error, builtins.ModuleNotFoundError) and error.name:
            return error.name
        error = error.__cause__
    return ""
