"""The report of a plan's check."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from amplifier_app.base.errors import Location
from amplifier_app.base.outcome import Ending
from amplifier_app.plan.tree.problems import PlanError, Problem
from amplifier_app.sources.resolved import ResolvedSource

Status = Literal["ok", "skipped", "broken", "not checked"]


class Finding(NamedTuple):
    """One problem.

    Attributes:
        kind: `"plan"`, `"config"` or `"module"`; the last is a fault of the module itself.
        problem: The problem and its location.
    """

    kind: Literal["plan", "config", "module"]
    problem: Problem


class CheckedModule(NamedTuple):
    """One module of the plan with the result of its check.

    Attributes:
        kind: `"orchestrator"`, `"context"`, `"provider"`, `"tool"` or `"hook"`.
        key: Its instance id, else its module id.
        module: Its module id.
        agent: The agent it belongs to; its modules are imported, not mounted.
        at: Where the plan names it.
        status: `"ok"`, with remarks in `reason`; `"skipped"` by a condition or because credentials
            are missing; `"not checked"` because a problem in the plan comes first.
        reason: Why it is not ok, or remarks.
        found: Its resolved source; None if it was not resolved or is unavailable.
    """

    kind: str
    key: str
    module: str
    at: Location
    status: Status
    reason: str = ""
    agent: str | None = None
    found: ResolvedSource | None = None


class CheckReport(NamedTuple):
    """The result of a check.

    Attributes:
        name: The plan's name.
        modules: Its modules in mount order, then those skipped by conditions.
        findings: Every problem, in the order of the files.
        warnings: Unused and possibly misspelt settings.
        sandbox: What the sandbox of its commands enforces here, one line each; empty if nothing in
            the plan starts commands.
    """

    name: str
    modules: tuple[CheckedModule, ...] = ()
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    sandbox: tuple[str, ...] = ()

    @property
    def ending(self) -> Ending:
        """The ending of the command; problems in the user's files take precedence."""
        if not self.findings:
            return Ending.OK
        if all(finding.problem.at.is_option for finding in self.findings):
            return Ending.USAGE
        kinds = {finding.kind for finding in self.findings}
        return Ending.MODULE if kinds == {"module"} else Ending.CONFIGURATION


def report_of(error: PlanError, name: str) -> CheckReport:
    """Return the report on a plan that cannot be loaded."""
    return CheckReport(name, findings=tuple(Finding("plan", one) for one in error.problems))


def as_json(report: CheckReport) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "schema_version": 1,
        "outcome": report.ending.value,
        "exit_code": report.ending.exit_code,
        "plan": report.name,
        "modules": [_module_json(module) for module in report.modules],
        "problems": [
            {
                "kind": finding.kind,
                "message": finding.problem.message,
                "hint": finding.problem.hint,
                "file": finding.problem.at.file,
                "line": finding.problem.at.line,
                "column": finding.problem.at.column,
            }
            for finding in report.findings
        ],
        "warnings": list(report.warnings),
        "sandbox": list(report.sandbox),
    }


def _module_json(module: CheckedModule) -> dict[str, Any]:
    found = module.found
    return {
        "id": module.module,
        "key": module.key,
        "kind": module.kind,
        "agent": module.agent,
        "at": str(module.at),
        "place": found.place if found is not None else None,
        "source": found.text if found is not None else None,
        "version": found.version if found is not None else None,
        "commit": found.commit if found is not None else None,
        "status": module.status,
        "reason": module.reason or None,
    }
