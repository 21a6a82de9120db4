"""Report modules that cannot be mounted, with the lines of the plan to change."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from amplifier_app.base.errors import AppError, ConfigError, ModuleError
from amplifier_app.base.paths import bundled_profiles_dir
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.modules import PlannedModule, planned_modules
from amplifier_app.plan.schema.config_check import config_problems
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, SECTION_OF
from amplifier_app.plan.tree.problems import PlanError, Problem
from amplifier_app.sources.module_problems import config_problems_of_bundled, with_lines
from amplifier_app.sources.requirements.missing_packages import missing_package, requires_hint
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core.module_sources import MISCONFIGURED, find_package

_MISSING_EXTRA = re.compile(
    r"mount\(\) raised \w+: (?:[\w-]+: )?(.*install it with: .*?)(?: \([^()]*, line \d+, in \w+\))?$",
    re.DOTALL,
)
"""Matches the error of a missing optional package; the group is the message without exception type and place."""


def failure_error(
    plan: ResolvedPlan, sources: AppModuleSourceResolver, failures: Sequence[Mapping[str, Any]]
) -> AppError:
    """Return the error for modules that cannot be mounted.

    Args:
        plan: The plan to mount.
        sources: Resolves module sources.
        failures: The modules that failed, as in the event `module:load_failed`, each with its `key` in the plan.

    Returns:
        A `PlanError` with the invalid config keys, if they explain every failure; a `ConfigError` if
        the modules report their configuration as invalid, which may come from the environment;
        otherwise a `ModuleError`. Both with the locations of the modules.
    """
    planned = {(module.kind, module.key): module for module in planned_modules(plan)}
    problems: list[Problem] = []
    missing: list[tuple[PlannedModule, str]] = []
    explained = True
    for failure in failures:
        error = str(failure["error"])
        module = planned.get((failure["module_type"], failure["key"]))
        if module is None:
            continue
        source = _resolve(module, sources)
        wrong = _config_problems(module, source) if source is not None else []
        if not wrong:
            explained = False
            if package := missing_package(error):
                missing.append((module, package))
            problems.append(mount_problem(module, source, error, failure["missing_import"]))
        problems += wrong
    # In a session without orchestrator or context, nothing else was mounted.
    problems += config_problems_of_bundled(plan, sources)
    findings = with_lines(plan, problems)
    if explained and findings:
        return PlanError(findings)
    misconfigured = all(MISCONFIGURED in str(failure["error"]) for failure in failures)
    error_type = ConfigError if misconfigured else ModuleError
    if len(findings) == 1:
        only = findings[0]
        if misconfigured and only.at.file.startswith(str(bundled_profiles_dir())):
            return error_type(only.message)
        return error_type(only.body(), hint=_entries_to_add(plan, missing), location=only.at)
    listed = "\n".join(map(str, findings))
    message = f"{len(findings)} modules cannot be mounted:\n{listed}"
    return error_type(message, hint=_entries_to_add(plan, missing))


def _entries_to_add(plan: ResolvedPlan, missing: Sequence[tuple[PlannedModule, str]]) -> str | None:
    """Return the text that adds packages to modules of included files, which are not the user's to edit."""
    own = plan.merged.chain[0]
    if all(module.at.file == own for module, _ in missing):
        return None
    lines: list[str] = []
    for section in ENTRY_SECTIONS:
        added = [
            f"  - {{module: {module.module}, requires: {json.dumps([package])}}}"
            for module, package in missing
            if SECTION_OF.get(module.kind) == section
        ]
        lines += [f"{section}:", *added] if added else []
    if not lines:
        return None
    packages = dict.fromkeys(package for _, package in missing)
    commands = [f"amplifier module require {shlex.quote(package)} -f {own}" for package in packages]
    return "\n".join(
        [
            f"Or add to {own}, which keeps the rest of these entries:",
            *lines,
            "This does it for all of them:",
            *(f"  {command}" for command in commands),
        ]
    )


def mount_problem(
    module: PlannedModule, source: ResolvedSource | None, error: str, missing_import: str = ""
) -> Problem:
    """Return the problem of a module that cannot be mounted, at its entry in the plan."""
    named = f"{module.kind} '{module.key}'"
    # Kernel errors start with the module id; name the module as the plan does instead.
    prefix = f"Module '{module.module}' "
    error = _MISSING_EXTRA.sub(r"\1", error)
    text = error.removeprefix(prefix) if error.startswith(prefix) else f"cannot be mounted: {error}"
    hint = _hint(module, source, text, missing_import)
    return Problem(f"{named} {text}", module.at, hint)


def _hint(
    module: PlannedModule, source: ResolvedSource | None, text: str, missing_import: str
) -> str | None:
    """Return the next step, unless the error itself names it."""
    own = (source.entry_point or "").partition(":")[0].partition(".")[0] if source else ""
    missing_its_own = bool(missing_import) and missing_import.partition(".")[0] == own
    hint = None if missing_its_own else requires_hint(text)
    if hint is not None:
        return hint
    own_advice = (MISCONFIGURED, "install it with: ", "list it under '", "amplifier mcp login ")
    if any(advice in text for advice in own_advice):
        return None
    if "(session.mount_timeout)" in text:
        return "fix what it waits for, or set a longer session.mount_timeout"
    target = source.text if source is not None and not source.installed else module.module
    return f"check its config; for details: amplifier module validate {shlex.quote(target)}"


def _resolve(module: PlannedModule, sources: AppModuleSourceResolver) -> ResolvedSource | None:
    try:
        return sources.resolve(module.module, module.source)
    # This only improves an error; on failure the error itself is reported.
    except Exception:
        return None


def _config_problems(module: PlannedModule, source: ResolvedSource) -> list[Problem]:
    try:
        schema = config_schema(import_package(source, module.module))
    # As above.
    except Exception:
        return []
    return config_problems(module.entry, module.module, schema) if schema is not None else []


def import_package(source: ResolvedSource, module_id: str) -> Any:
    """Return the package of a loaded module that declares its metadata, or None.

    For `package.part:mount` it is `package.part`, unless only `package` has a `config_schema`.
    """
    name = source.entry_point.partition(":")[0] if source.entry_point else ""
    if not name:
        name = find_package(module_id, source.resolve()).stem
    package = sys.modules.get(name)
    while package is not None and not hasattr(package, "config_schema") and "." in name:
        name = name.rpartition(".")[0]
        package = sys.modules.get(name, package)
    return package
