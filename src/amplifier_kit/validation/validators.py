"""The validators: five import a module, mount it on a temporary coordinator, inspect it and clean up; one reads a mount plan."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, cast

from amplifier_core._foreign import (
    describe_exception,
    find_root,
    required_arguments,
    warnings_logged,
    where_defined,
)
from amplifier_core.coordinator import MULTIPLE, ModuleCoordinator
from amplifier_core.loader import import_from_path
from amplifier_core.module_checks import (
    KINDS,
    Kind,
    Severity,
    ValidationCheck,
    check_instances,
    check_mount_function,
    compliance,
    select_errors,
)
from amplifier_core.module_sources import PARTS, SECTION_KINDS, TYPE_TO_MOUNT_POINT
from amplifier_kit.testing import MockCoordinator


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
        return select_errors(self.checks)

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


def conforms(kind: Kind, instance: object) -> bool:
    """Return True if ``instance`` has every required member of a kind."""
    required = [member.name for member in kind.members if member.required]
    return bool(required) and all(_has(instance, name) for name in required)


def find_instances(
    kind: Kind, coordinator: ModuleCoordinator, returned: object
) -> list[tuple[str, Any]]:
    """The mounted objects of a kind by name, or else the object that ``mount`` returned if it conforms."""
    if kind.name == "hook":
        return [("handler", returned)] if required_arguments(returned) else []
    mounted = coordinator.mount_points[TYPE_TO_MOUNT_POINT[kind.name]]
    if isinstance(mounted, dict):
        instances = list(cast("dict[str, Any]", mounted).items())
    else:
        instances = [] if mounted is None else [(kind.name, mounted)]
    if not instances and conforms(kind, returned):
        instances = [(str(_read_name(returned)), returned)]
    return instances


def find_cleanup(returned: object) -> Callable[[], Any] | None:
    """The return value of ``mount`` if it is a cleanup: callable without arguments, not an instance."""
    if not callable(returned) or required_arguments(returned):
        return None
    return None if any(conforms(kind, returned) for kind in KINDS.values()) else returned


async def run_cleanup(returned: object) -> None:
    """Call the cleanup that ``mount`` returned, if it returned one. Raises what it raises."""
    cleanup = find_cleanup(returned)
    pending = cleanup() if cleanup is not None else None
    if inspect.isawaitable(pending):
        await pending


def _has(instance: object, name: str) -> bool:
    try:
        return hasattr(instance, name)
    # Reading a member runs the module's code; the member's check reports the exception.
    except Exception:
        return True


def _read_name(instance: object) -> Any:
    try:
        return getattr(instance, "name", "returned")
    # As above.
    except Exception:
        return "returned"


# A module may raise anything, and may call sys.exit() during import.
FOREIGN_ERRORS: Final = (Exception, SystemExit)


def _import(
    result: ValidationResult, module_path: Path | str, entry_point: str | None
) -> ModuleType | None:
    try:
        module = _import_package(module_path)
        submodule = (entry_point or "").rpartition(":")[0]
        if submodule:
            module = importlib.import_module(submodule)
    except FOREIGN_ERRORS as error:
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
    coordinator = MockCoordinator()
    returned: Any = None
    try:
        with warnings_logged() as logged:
            returned = await _call(mount, coordinator, config)
        instances = find_instances(kind, coordinator, returned)
        result.add(_check_compliance(kind, coordinator, instances, returned, logged))
        result.checks += check_instances(kind.name, instances)
    except FOREIGN_ERRORS as error:
        result.add(compliance(False, f"mount() raised {describe_exception(error, root)}"))
    finally:
        check = _check_cleanup(kind, returned)
        if check is not None:
            result.add(check)
        try:
            await run_cleanup(returned)
        # A failing cleanup does not violate the contract, but it belongs in the report.
        except FOREIGN_ERRORS as error:
            message = f"the cleanup returned by mount() raised {describe_exception(error, root)}"
            result.add(ValidationCheck("cleanup", False, message, "warning"))
        await coordinator.cleanup()


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
    incomplete = [name for name, instance in instances if not conforms(kind, instance)]
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
            f" mount it with `{_how_to_mount(kind)}`"
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
        f" mount it with `{_how_to_mount(kind)}`",
    )


def _how_to_mount(kind: Kind) -> str:
    point = TYPE_TO_MOUNT_POINT[kind.name]
    name = ', name="…"' if point in MULTIPLE else ""
    return f'await coordinator.mount("{point}", {kind.name}{name})'


def _check_cleanup(kind: Kind, returned: object) -> ValidationCheck | None:
    """A failed check if ``mount`` returned a function that requires arguments."""
    if kind.name == "hook" or isinstance(returned, type):
        # A hook may return its handler.
        return None
    arguments = required_arguments(returned)
    if not arguments or any(conforms(other, returned) for other in KINDS.values()):
        return None
    message = (
        f"the cleanup returned by mount() requires {arguments} ({where_defined(returned)});"
        " write it without arguments"
    )
    return ValidationCheck("cleanup", False, message, "warning")


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
            module_path: package folder, Python file, or dotted name. A string that is a valid dotted
                name is read as one, even if a file of that name exists.
            entry_point: ``function`` or ``package.module:function``; default: ``mount`` of the package.
            config: passed to ``mount`` (a copy).
        """
        result = ValidationResult(self.kind.name, str(module_path))
        module = _import(result, module_path, entry_point)
        if module is None:
            return result
        name = (entry_point or "").rpartition(":")[2] or "mount"
        result.checks += check_mount_function(module, name)
        mount: Any = getattr(module, name, None)
        if callable(mount):
            await _mount_and_inspect(result, self.kind, module, mount, config)
        return result


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


@dataclass
class MountPlanValidationResult(CheckReport):
    """The checks of one mount plan."""

    checks: list[ValidationCheck] = field(default_factory=list[ValidationCheck])

    def expect(self, name: str, passed: bool, fault: str, severity: Severity = "error") -> bool:
        """Add a check with the message of its failure; return whether it passed."""
        self.add(ValidationCheck(name, passed, "ok" if passed else fault, severity))
        return passed

    def format_errors(self) -> str:
        """The errors, one ``name: message`` per line; empty if there are none."""
        return "\n".join(f"{check.name}: {check.message}" for check in self.errors)


class MountPlanValidator:
    """Checks the structure of a mount plan (Module Contracts, Configuration) without loading modules.

    ``session.orchestrator`` and ``session.context`` may be module ids; everything else is a mapping with
    ``module`` and optionally ``source`` (str) and ``config`` (mapping).
    """

    REQUIRED_SECTIONS: ClassVar[set[str]] = {"session"}
    OPTIONAL_SECTIONS: ClassVar[set[str]] = {*SECTION_KINDS, "agents"}
    REQUIRED_SESSION_FIELDS: ClassVar[set[str]] = {*PARTS}
    REQUIRED_MODULE_SPEC_FIELDS: ClassVar[set[str]] = {"module"}

    def validate(self, plan: object) -> MountPlanValidationResult:
        """Check ``plan``. Never raises: every problem becomes a failed check that names its location."""
        report = MountPlanValidationResult()
        if report.expect("root_type", isinstance(plan, dict), f"{_is(plan)}, not a mapping"):
            sections = cast("dict[str, Any]", plan)
            self._check_sections(report, sections)
            if report.expect("session_present", "session" in sections, "session is missing"):
                self._check_session(report, sections["session"])
        return report

    def _check_sections(self, report: MountPlanValidationResult, sections: dict[str, Any]) -> None:
        known = {*self.REQUIRED_SECTIONS, *self.OPTIONAL_SECTIONS, *PARTS}
        unknown = sorted(str(name) for name in sections if name not in known)
        report.expect(
            "unknown_sections",
            not unknown,
            f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}",
            "warning",
        )
        # The settings of a session that names its modules by id.
        for name in PARTS:
            settings = sections.get(name)
            if settings is not None:
                report.expect(
                    f"{name}_type", isinstance(settings, dict), f"{_is(settings)}, not a mapping"
                )
        for name in SECTION_KINDS:
            specs = sections.get(name)
            if specs is None:
                continue
            if report.expect(f"{name}_type", isinstance(specs, list), f"{_is(specs)}, not a list"):
                for index, spec in enumerate(cast("list[Any]", specs)):
                    self._check_spec(report, f"{name}[{index}]", spec)

    def _check_session(self, report: MountPlanValidationResult, session: Any) -> None:
        if not report.expect(
            "session_type", isinstance(session, dict), f"{_is(session)}, not a mapping"
        ):
            return
        for name in sorted(self.REQUIRED_SESSION_FIELDS):
            spec = session.get(name)
            if report.expect(
                f"session_{name}_present", spec is not None, f"session.{name} is missing"
            ):
                path = f"session.{name}"
                self._check_spec(report, path, {"module": spec} if isinstance(spec, str) else spec)

    def _check_spec(self, report: MountPlanValidationResult, path: str, spec: Any) -> None:
        if not report.expect(
            f"{path}_type", isinstance(spec, dict), f"{_is(spec)}, not a mapping with 'module'"
        ):
            return
        for name in sorted(self.REQUIRED_MODULE_SPEC_FIELDS):
            if report.expect(f"{path}_{name}_required", name in spec, f"{name!r} is missing"):
                value = spec[name]
                if report.expect(
                    f"{path}_{name}_type", isinstance(value, str), f"{_is(value)}, not a string"
                ):
                    report.expect(f"{path}_{name}_empty", bool(value.strip()), "is empty")
        config, source = spec.get("config"), spec.get("source")
        if config is not None:
            report.expect(
                f"{path}_config_type", isinstance(config, dict), f"{_is(config)}, not a mapping"
            )
        if source is not None:
            report.expect(
                f"{path}_source_type", isinstance(source, str), f"{_is(source)}, not a string"
            )


def _is(value: object) -> str:
    return "is empty" if value is None else f"is of type {type(value).__name__}"
