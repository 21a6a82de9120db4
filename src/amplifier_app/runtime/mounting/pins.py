"""Content that modules bring into a session from outside their own code, and a lock pins: MCP tools, skills.

Modules contribute it on the channel `lock.pins`: name → part → text or digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.mounting.entries import mount_entries
from amplifier_app.sources.lockfile import Pins
from amplifier_app.sources.plan_lock import drift_error, pin_differences

CHANNEL = "lock.pins"
PROBLEM = "problem"
"""The part of what cannot be pinned: the reason."""
_MODULES = ("tool-mcp", "tool-skills")
"""The modules that contribute: only these are mounted for a lock."""


async def find_pins(plan: ResolvedPlan) -> Pins:
    """Return what the modules of a plan bring now; this starts its MCP servers.

    Raises:
        ConfigError: One of these modules cannot be mounted, or a server does not answer.
        SourceError: One of them is not available.
    """
    tools = plan.mount_plan()["tools"]
    entries = [entry for entry in tools if entry["module"] in _MODULES]
    if not entries:
        return {}
    async with mount_entries(plan, entries, runs_commands=True) as coordinator:
        pins = await collect_pins(coordinator)
    for name, parts in pins.items():
        if PROBLEM in parts:
            raise ConfigError(f"cannot pin {name}: {parts[PROBLEM]}")
    return pins


async def collect_pins(coordinator: Any) -> Pins:
    """Return what the mounted modules of a session bring."""
    pins: dict[str, Mapping[str, str]] = {}
    for contribution in await coordinator.collect_contributions(CHANNEL):
        pins |= contribution
    return dict(sorted(pins.items()))


async def check_pins(coordinator: Any, locked: Pins | None) -> list[str]:
    """Compare what the modules of a session bring with the lock.

    Args:
        coordinator: The session's.
        locked: The pins of the lock; None for a lock without them. In a sub-session, only the names that
            its modules bring are compared.

    Returns:
        The names that the lock does not pin.

    Raises:
        ConfigError: Something differs.
    """
    found = await collect_pins(coordinator)
    if locked is None:
        return [*found]
    unpinned: list[str] = []
    if coordinator.parent_id is not None:
        unpinned = [name for name in found if name not in locked]
        locked = {name: parts for name, parts in locked.items() if name in found}
        found = {name: parts for name, parts in found.items() if name in locked}
    if differences := pin_differences(locked, found):
        raise drift_error(map(str, differences), None)
    return unpinned
