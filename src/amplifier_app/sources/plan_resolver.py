"""The resolver for a resolved plan: what the plan, its settings and its project say of sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.offline import is_offline
from amplifier_app.sources.resolver import AppModuleSourceResolver

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.plan.requirements import PlanRequirement
    from amplifier_app.sources.drift import ModuleLock


def resolver_for(
    plan: ResolvedPlan,
    *,
    cache: Path | None = None,
    lock: ModuleLock | None = None,
    partial: bool = False,
    offline: bool | None = None,
    renew: bool = False,
    requires: Mapping[str, Sequence[PlanRequirement]] | None = None,
) -> AppModuleSourceResolver:
    """A resolver that looks where the plan's project and settings say, and names its lines.

    Args:
        plan: Whose modules are resolved; its project is trusted.
        cache: The folder of what was fetched, `paths.cache_dir()` by default.
        lock: What modules are locked to; with one, nothing else is given.
        partial: Whether modules that the lock does not know are looked up as without it.
        offline: Whether nothing but the cache may be used; by default what AMPLIFIER_OFFLINE says.
        renew: Whether newer versions of packages are looked for.
        requires: Module id → what is added to its requirements; by default what the plan adds
            to those of the modules that are mounted here.
    """
    return AppModuleSourceResolver(
        cache=cache,
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
    """The modules of a plan and of its agents, which run in the same process."""
    from amplifier_app.plan.modules import agent_modules, planned_modules

    return [(one.module, one.source) for one in (*planned_modules(plan), *agent_modules(plan))]


def _origin(plan: ResolvedPlan, module_id: str, source: str | None) -> Location | None:
    """Where the plan names the source of a module, else the module."""
    # Only needed for what is wrong.
    from amplifier_app.plan.sourced import sourced_modules

    try:
        modules = sourced_modules(plan)
    except ConfigError:
        # Another source of the plan is wrong; whoever loaded it all the same tells that.
        return None
    return next((m.at for m in modules if (m.module, m.source) == (module_id, source)), None)
