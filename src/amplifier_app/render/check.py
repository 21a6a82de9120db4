"""The result of `plan check` as text."""

from __future__ import annotations

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.render.table import table
from amplifier_app.runtime.plan_check import CheckedModule, CheckReport

_HEAD = ("MODULE", "TYPE", "FROM", "VERSION", "STATUS")


def module_lines(report: CheckReport) -> list[str]:
    """Return the modules as a table."""
    return table(_HEAD, [_row(module) for module in report.modules])


def verdict(report: CheckReport) -> str:
    """Return the summary with every problem and every warning."""
    warnings = [f"amplifier: {one}" for one in report.warnings]
    if not report.findings:
        mounted = [one for one in report.modules if one.status == "ok" and one.agent is None]
        summary = f"amplifier: {report.name} is OK: {len(mounted)} modules loaded"
        return for_terminal("\n".join([*warnings, summary]))
    problems = [str(finding.problem) for finding in report.findings]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return for_terminal("\n".join([*warnings, f"amplifier: {report.name} has {count}", *problems]))


def _row(module: CheckedModule) -> tuple[str, ...]:
    found = module.found
    name = module.module if module.key == module.module else f"{module.module} ({module.key})"
    name = name if module.agent is None else f"{module.agent}: {name}"
    status = f"{module.status}: {module.reason}" if module.reason else module.status
    if found is None:
        return (name, module.kind, "-", "-", status)
    source = found.place if found.place in ("bundled", "installed") else found.text
    return (name, module.kind, source, found.version or (found.commit or "-")[:12], status)
