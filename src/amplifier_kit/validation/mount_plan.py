"""Check a mount plan before a session is created from it."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from amplifier_core.module_checks import Severity, ValidationCheck
from amplifier_core.module_sources import PARTS, SECTION_KINDS
from amplifier_kit.validation.validators import CheckReport

__all__ = ["MountPlanValidationResult", "MountPlanValidator"]


@dataclass
class MountPlanValidationResult(CheckReport):
    """The checks of one mount plan."""

    checks: list[ValidationCheck] = field(default_factory=list[ValidationCheck])

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
        report = _Report()
        if report.expect("root_type", isinstance(plan, dict), f"{_is(plan)}, not a mapping"):
            sections = cast("dict[str, Any]", plan)
            self._check_sections(report, sections)
            if report.expect("session_present", "session" in sections, "session is missing"):
                self._check_session(report, sections["session"])
        return report.result

    def _check_sections(self, report: "_Report", sections: dict[str, Any]) -> None:
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

    def _check_session(self, report: "_Report", session: Any) -> None:
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

    def _check_spec(self, report: "_Report", path: str, spec: Any) -> None:
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


class _Report:
    """Collects checks, each with its expectation and failure message."""

    def __init__(self) -> None:
        self.result = MountPlanValidationResult()

    def expect(self, name: str, passed: bool, fault: str, severity: Severity = "error") -> bool:
        self.result.add(ValidationCheck(name, passed, "ok" if passed else fault, severity))
        return passed


def _is(value: object) -> str:
    return "is empty" if value is None else f"is of type {type(value).__name__}"
