"""Why modules of a plan cannot be mounted, told at the lines of the plan that have to change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from amplifier_app.errors import AppError, ModuleError
from amplifier_app.plan.config_check import config_problems
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.module_schemas import config_schema
from amplifier_app.plan.modules import PlannedModule, planned_modules
from amplifier_app.plan.problems import PlanError, Problem, Problems
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_app.sources.resolver import AppModuleSourceResolver


class MountFailure(NamedTuple):
    """A module whose mount failed.

    Attributes:
        kind: Its kind.
        key: Its instance id, else its module id.
        error: What its code or the loader said.
    """

    kind: str
    key: str
    error: str


def failure_error(
    plan: ResolvedPlan, sources: AppModuleSourceResolver, failures: Sequence[MountFailure]
) -> AppError:
    """The error for modules that cannot be mounted.

    Args:
        plan: What was to be mounted.
        sources: Where its modules came from.
        failures: Which cannot be.

    Returns:
        A `PlanError` with the keys of the config that are wrong, if that explains all of it;
        else a `ModuleError` with the places of the modules.
    """
    planned = {(one.kind, one.key): one for one in planned_modules(plan)}
    problems: list[Problem] = []
    explained = True
    for failure in failures:
        module = planned.get((failure.kind, failure.key))
        wrong = _config_problems(module, sources) if module is not None else []
        if module is not None and not wrong:
            explained = False
            problems.append(mount_problem(module, failure.error))
        problems += wrong
    shown = with_lines(plan, problems)
    if explained and shown:
        return PlanError(shown)
    if len(shown) == 1:
        return ModuleError(shown[0].body(), location=shown[0].at)
    listed = "\n".join(map(str, shown))
    return ModuleError(f"{len(shown)} modules cannot be mounted:\n{listed}")


def mount_problem(module: PlannedModule, error: str) -> Problem:
    """That a module cannot be mounted, at its entry in the plan."""
    named = f"{module.kind} '{module.key}'"
    # The errors of the kernel begin with the module's id, of which the plan knows more.
    prefix = f"Module '{module.module}' "
    told = error.removeprefix(prefix) if error.startswith(prefix) else f"cannot be mounted: {error}"
    return Problem(f"{named} {told}", module.entry.key_at("module"))


def _config_problems(module: PlannedModule, sources: AppModuleSourceResolver) -> list[Problem]:
    try:
        found = sources.resolve(module.module, module.source)
        schema = config_schema(package_of(found, module.module))
    # This only makes an error better; whatever stands in the way, the error itself is told.
    except Exception:
        return []
    return config_problems(module.entry, module.module, schema) if schema is not None else []


def package_of(found: ResolvedSource, module_id: str) -> Any:
    """What a module that has been loaded tells about itself: its package, or None.

    Of `package.part:mount` that is `package.part`, unless only `package` has a `config_schema`.
    """
    name = found.entry_point.partition(":")[0] if found.entry_point else ""
    if not name:
        from amplifier_core.discovery import find_package

        name = find_package(module_id, found.resolve()).stem
    package = sys.modules.get(name)
    while package is not None and not hasattr(package, "config_schema") and "." in name:
        name = name.rpartition(".")[0]
        package = sys.modules.get(name, package)
    return package


def with_lines(plan: ResolvedPlan, problems: Sequence[Problem]) -> list[Problem]:
    """The problems in the order of the files, with the lines they are on."""
    collected = Problems(plan.merged.texts)
    for problem in problems:
        collected.add(problem.message, problem.at, problem.hint)
    return collected.listed()
