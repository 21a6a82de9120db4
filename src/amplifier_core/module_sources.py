"""Sources of modules: protocols that an app implements (Module Source Protocol).

Errors of loading and mounting a module, and the reason codes in events.

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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class ModuleNotFoundError(Exception):
    """A module has no source. The message names the module and the places searched."""


class ModuleLoadError(Exception):
    """A module was found but cannot be imported or mounted."""


class ModuleSource(ABC):
    """A location that a module can be imported from.

    A source may also have

    * `entry_point` (``"package:mount"``, str): the kernel imports this instead of looking
      for a package in the folder;
    * `import_paths` (folders): appended to ``sys.path``, for the package's dependencies;
    * `preferred_paths` (folders): inserted before the environment's installed packages, for
      dependencies that the environment has in another version;
    * `installed` (bool): `entry_point` can be imported from the environment; `resolve` is
      not called.
    """

    @abstractmethod
    def resolve(self) -> Path:
        """Folder that contains an importable package.

        Raises:
            ModuleNotFoundError: The source cannot be resolved.
            OSError: The folder cannot be accessed.
        """


@runtime_checkable
class ModuleSourceResolver(Protocol):
    """Decides where a module comes from; an app mounts it at ``module-source-resolver``.

    A resolver may also have ``async_resolve`` with the same parameters.
    """

    def resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ModuleSource:
        """The source of `module_id`.

        Args:
            module_id: Module identifier, e.g. ``tool-bash``.
            source_hint: The module's `source` in the plan, in the app's format.
            profile_hint: Older name of `source_hint`.

        Raises:
            ModuleNotFoundError: This resolver has no source for the module.
        """
        ...


class FileSystemModuleSource:
    """Folders to search for modules."""

    def __init__(self, paths: list[str] | None = None) -> None:
        self._paths = list(paths or ())

    def get_module_paths(self) -> list[str]:
        """The folders (a copy)."""
        return list(self._paths)

    def get_mention_mappings(self) -> dict[str, str]:
        """Mention prefixes defined by the folders; always empty."""
        return {}


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


class NotInstalledError(ModuleNotFoundError, ValueError):
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
    if isinstance(error, (ModuleNotFoundError, FileNotFoundError)):
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
