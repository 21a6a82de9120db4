"""Which modules are available, and their kinds: entry points, packages, project folders.

Public: apps use it to look up modules without loading them.
"""

import importlib
import re
import sys
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from amplifier_core.module_sources import ModuleValidationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from amplifier_core.models import ModuleInfo

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

_KIND_BY_ID = (
    ("loop", "orchestrator"),
    ("provider", "provider"),
    ("tool", "tool"),
    ("hook", "hook"),
    ("context", "context"),
)


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
    found = [(module_id.index(part), kind) for part, kind in _KIND_BY_ID if part in module_id]
    return min(found)[1] if found else "tool"


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
    for entry in _entry_points(name=module_id):
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


def installed_modules() -> "list[ModuleInfo]":
    """Modules of installed distributions."""
    return [
        _info(entry.name, entry.dist.version if entry.dist else "") for entry in _entry_points()
    ]


def modules_in(folder: Path) -> "list[ModuleInfo]":
    """Modules with a project folder in `folder`, sorted by name; empty if it does not exist."""
    return [
        _info(path.name.removeprefix(project_name("")), "")
        for path in sorted(folder.glob(project_name("*")))
        if path.is_dir()
    ]


def _entry_points(**named: Any) -> "EntryPoints":
    # It takes longer than all else here, and most sessions need no entry point.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINT_GROUP, **named)


def _info(module_id: str, version: str) -> "ModuleInfo":
    from amplifier_core.models import ModuleInfo

    kind: Any = find_kind(module_id)
    return ModuleInfo(
        id=module_id,
        name=module_id,
        version=version,
        type=kind,
        mount_point=TYPE_TO_MOUNT_POINT[kind],
        description="",
    )
