"""Why a module is not there: one tree, and the reason codes events carry.

module_sources.ModuleNotFoundError
└── NotInstalledError        nobody knows it; also a ValueError
module_sources.ModuleLoadError
├── ModuleImportError        its code cannot be imported; also an ImportError
├── ModuleMountError         its mount function raised
└── ModuleValidationError    it is not what a module must be
Exception
└── NothingMountedError      it declined: its mount function went through and mounted nothing
RuntimeError
└── RequiredModuleError      there is no session without it
"""

import builtins
from collections.abc import Sequence

from amplifier_core._load_validation import CheckLike
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


class NotInstalledError(SourceNotFoundError, ValueError):
    """A module is neither installed nor on ``sys.path``."""


class ModuleImportError(ModuleLoadError, ImportError):
    """A module was found and cannot be imported; the cause is what its code raised."""


class ModuleMountError(ModuleLoadError):
    """A module's mount function raised; the cause is what it raised."""


class NothingMountedError(Exception):
    """A module's mount went through and mounted nothing, usually for want of credentials."""


class ModuleValidationError(ModuleLoadError):
    """A module was found and is not what a module must be.

    Attributes:
        reason_code: One of `MODULE_FAILURE_REASONS`.
    """

    def __init__(self, message: str, *, reason_code: str = "validation_failed") -> None:
        super().__init__(message)
        self.reason_code = reason_code


def validation_failure(module_id: str, failed: Sequence[CheckLike]) -> ModuleValidationError:
    """The error for a module that failed these checks."""
    listed = "; ".join(f"{check.name}: {check.message}" for check in failed)
    return ModuleValidationError(f"Module '{module_id}' failed validation: {listed}")


class RequiredModuleError(RuntimeError):
    """The orchestrator or the context of a session cannot be mounted.

    Attributes:
        kind: ``"orchestrator"`` or ``"context"``.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def module_failure_reason(error: BaseException) -> str:
    """Which of `MODULE_FAILURE_REASONS` an exception stands for."""
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
    """Name of the package whose absence made a module fail; empty if that was not the reason."""
    while error is not None:
        if isinstance(error, builtins.ModuleNotFoundError) and error.name:
            return error.name
        error = error.__cause__
    return ""
