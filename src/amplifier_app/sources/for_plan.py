"""The resolver for a resolved plan: what the plan, its settings and its project say of sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.errors import Location
from amplifier_app.offline import is_offline
from amplifier_app.sources.resolver import AppModuleSourceResolver

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.sources.drift import ModuleLock


def resolver_for(
    plan: ResolvedPlan,
    *,
    cache: Path | None = None,
    lock: ModuleLock | None = None,
    partial: bool = False,
    offline: bool | None = None,
    renew: bool = False,
) -> AppModuleSourceResolver:
    """A resolver that looks where the plan's project and settings say, and names its lines.

    Args:
        plan: Whose modules are resolved; its project is trusted.
        cache: The folder of what was fetched, `paths.cache_dir()` by default.
        lock: What modules are locked to; with one, nothing else is given.
        partial: Whether modules that the lock does not know are looked up as without it.
        offline: Whether nothing but the cache may be used; by default what AMPLIFIER_OFFLINE says.
        renew: Whether newer versions of packages are looked for.
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
    )


def _origin(plan: ResolvedPlan, module_id: str, source: str | None) -> Location | None:
    """Where the plan names the source of a module, else the module."""
    for path, entry in _entries(plan.mount_plan()):
        if entry["module"] == module_id and entry.get("source") == source:
            return plan.origin([*path, "source"] if source is not None else path)
    return None


def _entries(mount_plan: dict[str, Any]) -> list[tuple[list[str | int], dict[str, Any]]]:
    session = mount_plan["session"]
    found: list[tuple[list[str | int], dict[str, Any]]] = [
        (["session", part], session[part]) for part in ("orchestrator", "context")
    ]
    for section in ("providers", "tools", "hooks"):
        found += [([section, index], entry) for index, entry in enumerate(mount_plan[section])]
    return found
