"""The resolver for a resolved plan, with the sources of its settings and its project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.offline import is_offline
from amplifier_app.sources.resolver import AppModuleSourceResolver

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.plan.requirements import PlanRequirement
    from amplifier_app.sources.lock_check import ModuleLock


def resolver_for(
    plan: ResolvedPlan,
    *,
    lock: ModuleLock | None = None,
    partial: bool = False,
    offline: bool | None = None,
    renew: bool = False,
    requires: Mapping[str, Sequence[PlanRequirement]] | None = None,
) -> AppModuleSourceResolver:
    """A resolver that uses the plan's project and settings, and reports lines in their files.

    Args:
        plan: The plan whose modules to resolve; its project is trusted.
        lock: The lock that every module must match.
        partial: Resolve modules that are not in the lock as if there were no lock.
        offline: Use only the cache. Defaults to AMPLIFIER_OFFLINE.
        renew: Look for newer versions of packages.
        requires: Module id → added requirements; by default those that the plan adds for the
            modules mounted here.
    """
    return AppModuleSourceResolver(
        environ=plan.environ,
        workspace=plan.project / "modules" if plan.project is not None else None,
        overrides=plan.sources,
        origin=lambda module_id, source: _origin(plan, module_id, source),
        lock=lock,
        partial=partial,
        offline=is_offline() if offline is None else offline,
        renew=renew,
        requires=lambda: plan.requires if requires is None else requires,
        modules=lambda: _mounted(plan),
    )


def _mounted(plan: ResolvedPlan) -> list[tuple[str, str | None]]:
    """The modules of a plan and its agents, which share one process."""
    from amplifier_app.plan.modules import agent_modules, planned_modules

    return [(one.module, one.source) for one in (*planned_modules(plan), *agent_modules(plan))]


def _origin(plan: ResolvedPlan, module_id: str, source: str | None) -> Location | None:
    """Where the plan sets the source of a module, or names the module."""
    # Imported here because only errors need it.
    from amplifier_app.plan.module_sources import sourced_modules

    try:
        modules = sourced_modules(plan)
    except ConfigError:
        # Another source in the plan is invalid; the caller that loaded the plan reports it.
        return None
    return next((m.at for m in modules if (m.module, m.source) == (module_id, source)), None)
