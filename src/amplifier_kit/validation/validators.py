"""The five validators: import a module, mount it on a temporary coordinator, inspect it, clean up."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, cast

from amplifier_core._foreign import describe_exception, find_root, warnings_logged, where_defined
from amplifier_core.coordinator import DetachedSession, ModuleCoordinator
from amplifier_core.loader import ModuleLoader, import_from_path
from amplifier_core.module_checks import (
    KINDS,
    Kind,
    ValidationCheck,
    ValidationResult,
    check_instances,
    check_mount_function,
    compliance,
    find_cleanup,
)
from amplifier_core.mounting import required_arguments

__all__ = [
    "VALIDATORS",
    "ContextValidator",
    "HookValidator",
    "ModuleValidator",
    "OrchestratorValidator",
    "ProviderValidator",
    "ToolValidator",
    "run_checks",
]


# A module may raise anything, and may call sys.exit() during import.
_FOREIGN_ERRORS: Final = (Exception, SystemExit)


async def run_checks(
    kind: Kind,
    module_path: Path | str,
    entry_point: str | None = None,
    config: dict[str, Any] | None = None,
) -> ValidationResult:
    """Import and mount a module, and check it against the contract of its kind.

    Args:
        kind: expected kind of the module.
        module_path: package folder, Python file, or dotted name. A string that is a valid dotted
            name is read as one, even if a file of that name exists.
        entry_point: ``function`` or ``package.module:function``; default: ``mount`` of the package.
        config: passed to ``mount`` (a copy).
    """
    result = ValidationResult(kind.name, str(module_path))
    module = _import(result, module_path, entry_point)
    if module is None:
        return result
    name = (entry_point or "").rpartition(":")[2] or "mount"
    result.checks += check_mount_function(module, name)
    mount: Any = getattr(module, name, None)
    if callable(mount):
        await _mount_and_inspect(result, kind, module, mount, config)
    return result


def _import(
    result: ValidationResult, module_path: Path | str, entry_point: str | None
) -> ModuleType | None:
    try:
        module = _import_package(module_path)
        submodule = (entry_point or "").rpartition(":")[0]
        if submodule:
            module = importlib.import_module(submodule)
    except _FOREIGN_ERRORS as error:
        result.add(
            ValidationCheck(
                "module_importable",
                False,
                f"cannot import {module_path}: {describe_exception(error, _root_of_path(module_path))}",
            )
        )
        return None
    result.add(ValidationCheck("module_importable", True, f"imported as {module.__name__}"))
    return module


def _import_package(module_path: Path | str) -> ModuleType:
    path = _path(module_path)
    if path is None:
        return importlib.import_module(str(module_path))
    if path.is_dir() and not (path / "__init__.py").is_file():
        inside = sorted(child.parent.name for child in path.glob("*/__init__.py"))
        advice = f"use the package folder in it: {', '.join(inside)}" if inside else "add one"
        raise ImportError(f"the folder has no __init__.py; {advice}")
    if not path.exists():
        raise ImportError("no such file or folder")
    return import_from_path(path)


def _path(module_path: Path | str) -> Path | None:
    """`module_path` as a path; None if it is a dotted name."""
    if isinstance(module_path, Path):
        return module_path
    dotted = all(part.isidentifier() for part in module_path.split("."))
    return None if dotted and not module_path.endswith(".py") else Path(module_path)


def _root_of_path(module_path: Path | str) -> Path | None:
    """Location of a module that cannot be imported; None for a dotted name."""
    path = _path(module_path)
    return path.resolve() if path is not None and path.exists() else None


async def _mount_and_inspect(
    result: ValidationResult,
    kind: Kind,
    module: ModuleType,
    mount: Callable[..., Any],
    config: dict[str, Any] | None,
) -> None:
    root = find_root(module)
    coordinator = _throwaway_coordinator()
    returned: Any = None
    try:
        with warnings_logged() as logged:
            returned = await _call(mount, coordinator, config)
        instances = kind.instances(coordinator, returned)
        result.add(_check_compliance(kind, coordinator, instances, returned, logged))
        result.checks += check_instances(kind.name, instances)
    except _FOREIGN_ERRORS as error:
        result.add(compliance(False, f"mount() raised {describe_exception(error, root)}"))
    finally:
        check = _check_cleanup(kind, returned)
        if check is not None:
            result.add(check)
        await _clean_up(result, find_cleanup(returned), coordinator, root)


async def _call(
    mount: Callable[..., Any], coordinator: ModuleCoordinator, config: dict[str, Any] | None
) -> Any:
    pending = mount(coordinator, _copied(config or {}))
    if not inspect.isawaitable(pending):
        raise TypeError(f"it returned {type(pending).__name__}, which is not awaitable")
    return await pending


def _copied(value: Any) -> Any:
    """Copy containers and share other values, so that validation does not change the caller's config."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    return value


def _check_compliance(
    kind: Kind,
    coordinator: ModuleCoordinator,
    instances: list[tuple[str, Any]],
    returned: object,
    logged: list[str],
) -> ValidationCheck:
    if kind.name == "hook":
        events = [event for event, names in coordinator.hooks.list_handlers().items() if names]
        return compliance(True, f"mount() registered handlers for {len(events)} events")
    names = ", ".join(repr(name) for name, _ in instances)
    incomplete = [name for name, instance in instances if not kind.conforms(instance)]
    if incomplete:
        message = f"{kind.name} {', '.join(incomplete)} lacks members of the protocol"
        return compliance(False, message)
    if instances:
        return compliance(True, f"mount() mounted {kind.name} {names}")
    if callable(returned) and not isinstance(returned, type):
        if any(coordinator.channels.values()):
            # It may mount more with another config, or later.
            return compliance(True, f"mount() mounted no {kind.name}, but contributes to channels")
        message = (
            f"mount() mounted no {kind.name} and returned a cleanup;"
            f" mount it with `{kind.how_to_mount}`"
        )
        check = compliance(False, message)
        check.severity = "warning"
        return check
    reason = f" (it logged: {'; '.join(logged)})" if logged else ""
    what = returned.__name__ if isinstance(returned, type) else type(returned).__name__
    what = f"the class {what}" if isinstance(returned, type) else what
    return compliance(
        False,
        f"mount() mounted no {kind.name} and returned {what}{reason};"
        f" mount it with `{kind.how_to_mount}`",
    )


def _check_cleanup(kind: Kind, returned: object) -> ValidationCheck | None:
    """A failed check if ``mount`` returned a function that requires arguments."""
    if kind.name == "hook" or isinstance(returned, type):
        # A hook may return its handler.
        return None
    wanted = required_arguments(returned)
    if not wanted or any(other.conforms(returned) for other in KINDS.values()):
        return None
    message = (
        f"the cleanup returned by mount() requires {wanted} ({where_defined(returned)});"
        " write it without arguments"
    )
    return ValidationCheck("cleanup", False, message, "warning")


async def _clean_up(
    result: ValidationResult,
    cleanup: Callable[[], Any] | None,
    coordinator: ModuleCoordinator,
    root: Path | None,
) -> None:
    try:
        if cleanup is not None:
            pending = cleanup()
            if inspect.isawaitable(pending):
                await pending
    # A failing cleanup does not violate the contract, but it belongs in the report.
    except _FOREIGN_ERRORS as error:
        message = f"the cleanup returned by mount() raised {describe_exception(error, root)}"
        result.add(ValidationCheck("cleanup", False, message, "warning"))
    await coordinator.cleanup()


class _DenyAll:
    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        return "Deny"


class _Silent:
    def show_message(self, message: str, level: str, source: str = "hook") -> None:
        """Drop the message."""


def _throwaway_coordinator() -> ModuleCoordinator:
    """A coordinator without a session: nothing is mounted yet, approvals are denied.

    Its loader is for modules that mount another one.
    """
    session = DetachedSession(
        session_id="validation",
        config={"session": {"orchestrator": "none", "context": "none"}},
    )
    coordinator = ModuleCoordinator(session, approval_system=_DenyAll(), display_system=_Silent())
    coordinator.loader = ModuleLoader(coordinator)
    return coordinator


class ModuleValidator:
    """Checks a module against the contract of one kind."""

    kind: ClassVar[Kind]

    async def validate(
        self,
        module_path: Path | str,
        entry_point: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> ValidationResult:
        """Import, mount, inspect and clean up the module. Exceptions of the module become failed checks.

        Args:
            module_path: package folder, Python file, or dotted name.
            entry_point: ``function`` or ``package.module:function``; default: ``mount``.
            config: passed to ``mount``.
        """
        return await run_checks(self.kind, module_path, entry_point, config)


class ProviderValidator(ModuleValidator):
    """Provider Contract: a model service."""

    kind = KINDS["provider"]


class ToolValidator(ModuleValidator):
    """Tool Contract: a function that the model can call."""

    kind = KINDS["tool"]


class HookValidator(ModuleValidator):
    """Hook Contract: handlers of events."""

    kind = KINDS["hook"]


class OrchestratorValidator(ModuleValidator):
    """Orchestrator Contract: the loop that runs a turn."""

    kind = KINDS["orchestrator"]


class ContextValidator(ModuleValidator):
    """Context Contract: the memory of a conversation."""

    kind = KINDS["context"]


VALIDATORS: dict[str, type[ModuleValidator]] = {
    "provider": ProviderValidator,
    "tool": ToolValidator,
    "hook": HookValidator,
    "orchestrator": OrchestratorValidator,
    "context": ContextValidator,
}
"""The validators by kind."""
