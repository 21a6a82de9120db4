"""The origins of modules: the protocols of their sources, which modules there are, errors of loading them.

Entry points, packages and project folders show which modules are available, and of which kind. An app
implements the protocols (Module Source Protocol).

Errors:

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

Public: apps look up modules with it without loading them, and catch its errors to explain them to the user.
"""

import builtins
import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Protocol, runtime_checkable

from amplifier_support.installation import find_entry_points


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


ENTRY_POINT_GROUP = "amplifier.modules"
"""The group of entry points that declares modules."""

TYPE_TO_MOUNT_POINT = {
    "orchestrator": "orchestrator",
    "provider": "providers",
    "tool": "tools",
    "hook": "hooks",
    "context": "context",
    "resolver": "module-source-resolver",
}

SECTION_KINDS = MappingProxyType({"providers": "provider", "tools": "tool", "hooks": "hook"})
"""Section of a mount plan with a list of modules → kind of its modules."""

PARTS = ("orchestrator", "context")
"""The parts of a plan's ``session`` that are a module each; the name of a part is its kind."""

_KIND_BY_WORD = {kind: kind for kind in ("provider", "tool", "hook", "context")} | {
    "loop": "orchestrator"
}


def find_kind(module_id: str, package: ModuleType | None = None) -> str:
    """Kind of a module: as declared by its package, or else guessed from its id.

    Raises:
        ModuleValidationError: The package declares a kind that does not exist.
    """
    declared = declared_kind(module_id, package)
    if declared is not None:
        return declared
    if "orchestrat" in module_id:
        return "orchestrator"
    # The first word wins: "hooks-loop-guard" is a hook.
    matches = [
        (module_id.index(part), kind) for part, kind in _KIND_BY_WORD.items() if part in module_id
    ]
    return min(matches)[1] if matches else "tool"


def declared_kind(module_id: str, package: ModuleType | None) -> str | None:
    """The ``__amplifier_module_type__`` of a package or its nearest parent that has one, or None.

    Raises:
        ModuleValidationError: It declares a kind that does not exist.
    """
    declared: Any = None
    name = package.__name__ if package is not None else ""
    while package is not None and declared is None:
        declared = getattr(package, "__amplifier_module_type__", None)
        name = name.rpartition(".")[0]
        package = sys.modules.get(name) if name else None
    if declared is None or (isinstance(declared, str) and declared in TYPE_TO_MOUNT_POINT):
        return declared
    raise ModuleValidationError(
        f"Module '{module_id}' declares __amplifier_module_type__ = {declared!r}; "
        f"known: {', '.join(TYPE_TO_MOUNT_POINT)}",
        reason_code="invalid_module_metadata",
    )


def conventional_name(module_id: str) -> str:
    """The package name of a module without an entry point."""
    return f"amplifier_module_{re.sub(r'[^A-Za-z0-9_]', '_', module_id)}"


def project_name(module_id: str) -> str:
    """Name of a module's project folder inside a search folder."""
    return f"amplifier-module-{module_id}"


def find_package(module_id: str, folder: Path) -> Path:
    """The package of a resolved folder: the folder itself, or a package in it.

    Raises:
        ModuleValidationError: The folder contains no package.
    """
    if (folder / "__init__.py").is_file():
        return folder
    by_name = folder / conventional_name(module_id)
    candidates = [by_name, *sorted(folder.glob("amplifier_module_*"))]
    for candidate in candidates:
        if (candidate / "__init__.py").is_file():
            return candidate
    raise ModuleValidationError(
        f"Module '{module_id}': no package in {folder}; expected __init__.py, "
        f"{by_name.name}/ or amplifier_module_*/",
        reason_code="invalid_package_layout",
    )


def installed_mount(module_id: str) -> Any:
    """The object that the entry point of this name refers to, or None."""
    for entry in find_entry_points(ENTRY_POINT_GROUP, name=module_id):
        return entry.load()
    return None


def conventional_package(module_id: str) -> ModuleType | None:
    """The package of the conventional name if it is on ``sys.path``, or None."""
    name = conventional_name(module_id)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name == name:
            return None
        raise
