"""Faults of a plan's modules, as far as they can be seen without fetching or mounting any.

Used to complete the report on a plan that cannot run: everything its author can fix at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amplifier_app.base.errors import AppError, ModuleError
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.modules import (
    PlannedModule,
    agent_modules,
    planned_modules,
    unset_variables,
)
from amplifier_app.plan.schema.config_check import config_problems
from amplifier_app.plan.schema.module_schemas import schema_of_installed
from amplifier_app.plan.tree.problems import PlanError, Problem, Problems, as_clause
from amplifier_app.sources.errors import SourceError, SourceErrors
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_core.module_sources import ModuleNotFoundError


def with_lines(plan: ResolvedPlan, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems in the order of the files, with their lines."""
    collected = Problems(plan.merged.texts)
    collected.extend(problems)
    return collected.sorted_problems()


def with_module_problems(plan: ResolvedPlan, error: PlanError) -> PlanError:
    """The error for a plan, with the problems of its modules.

    Args:
        plan: The plan, loaded `lenient`.
        error: The error that `lenient` ignores.
    """
    sources = resolver_for(plan)
    unknown = [
        source_problem(module, failure)
        for module in _modules(plan)
        if not source_is_wrong(module, plan, error.problems)
        and (failure := _failure(module, sources)) is not None
    ]
    more = [*unknown, *config_problems_of_bundled(plan, sources)]
    return PlanError(with_lines(plan, [*error.problems, *more]))


def with_config_problems(
    plan: ResolvedPlan, sources: AppModuleSourceResolver, error: SourceError
) -> AppError:
    """The error for unavailable modules, with the config problems of all others."""
    failures = error.failures if isinstance(error, SourceErrors) else (error,)
    wrong = list(config_problems_of_bundled(plan, sources))
    if not wrong or any(failure.location is None for failure in failures):
        return error
    unavailable = [
        Problem(failure.message, failure.location, failure.hint)
        for failure in failures
        if failure.location is not None
    ]
    return PlanError(with_lines(plan, [*unavailable, *wrong]))


def source_is_wrong(module: PlannedModule, plan: ResolvedPlan, problems: Sequence[Problem]) -> bool:
    """Return True if the source of a module has a problem, so that the module cannot be found.

    Args:
        module: The module.
        plan: Its plan, loaded `lenient`, which leaves such a source out or keeps it as written.
        problems: The problems of the plan.
    """
    named = plan.merged.sources.get(module.module)
    if named is not None and module.module not in plan.sources:
        return True
    source = module.entry.items.get("source")
    if source is not None:
        return any(problem.at == source.at for problem in problems) or any(unset_variables(source))
    at = module.entry.keys.get("source")
    return at is not None and any(
        (problem.at.file, problem.at.line) == at[:2] for problem in problems
    )


def source_problem(module: PlannedModule, error: Exception) -> Problem:
    """The problem of a module that is unavailable, at its source or its name."""
    at = module.entry.key_at("source" if module.source is not None else "module")
    if not isinstance(error, AppError):
        return Problem(f"{module.key}: {error}", at)
    return Problem(
        f"{module.key}: {error.message}", error.location or at, error.hint and as_clause(error.hint)
    )


def _modules(plan: ResolvedPlan) -> list[PlannedModule]:
    return [module for module in (*planned_modules(plan), *agent_modules(plan)) if module.module]


def _failure(module: PlannedModule, sources: AppModuleSourceResolver) -> Exception | None:
    try:
        sources.choose(module.module, module.source)
    except (SourceError, ModuleNotFoundError) as error:
        return error
    return None


def config_problems_of_bundled(
    plan: ResolvedPlan, sources: AppModuleSourceResolver
) -> Iterator[Problem]:
    """The problems in the config of the plan's bundled modules."""
    for module in _modules(plan):
        if "config" not in module.entry.items or _failure(module, sources) is not None:
            continue
        if sources.choose(module.module, module.source).place != "bundled":
            # Its code is not run for a report.
            continue
        try:
            schema = schema_of_installed(module.module)
        except ModuleError:
            # The fault of a bundled module is reported when it is mounted.
            continue
        if schema is not None:
            partial = module.agent is not None
            yield from config_problems(module.entry, module.module, schema, partial=partial)
