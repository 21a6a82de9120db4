"""The modules that a plan mounts, each with its entry in the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.entries import ModuleEntry, entry_key, module_entries
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar, text_of


class PlannedModule(NamedTuple):
    """One module of a plan.

    Attributes:
        kind: `"orchestrator"`, `"context"`, `"provider"`, `"tool"` or `"hook"`.
        key: Its instance id, else its module id.
        module: Its module id.
        source: The source the plan sets for it.
        entry: Its entry in the plan.
        agent: The agent it belongs to; None for the plan's own modules.
    """

    kind: str
    key: str
    module: str
    source: str | None
    entry: MapNode
    agent: str | None = None


def planned_modules(plan: ResolvedPlan) -> list[PlannedModule]:
    """The modules in mount order, without those of agents."""
    found = [_planned(one) for one in module_entries(plan.tree) if one.agent is None]
    # A part of the session may be left without one by its problems.
    return [one for one in found if one.module]


def agent_modules(plan: ResolvedPlan) -> list[PlannedModule]:
    """The modules of a plan's agents: additional ones, or modules of the plan with other settings.

    If an agent only changes a module of the plan, the plan's source applies.
    """
    sources = {(one.kind, one.key): one.source for one in planned_modules(plan)}
    found = [_planned(one) for one in module_entries(plan.tree) if one.agent is not None]
    return [
        one._replace(source=one.source or sources.get((one.kind, one.key)))
        for one in found
        if one.module
    ]


def _planned(one: ModuleEntry) -> PlannedModule:
    module = text_of(one.node.items.get("module")) or ""
    source = text_of(one.node.items.get("source"))
    return PlannedModule(one.kind, entry_key(one.node) or "", module, source, one.node, one.agent)


def unset_variables(node: Node) -> Iterator[str]:
    """The unset variables in a part of a plan; see `Scalar.unset`."""
    if isinstance(node, Scalar):
        yield from node.unset
        return
    for value in node.items.values() if isinstance(node, MapNode) else node.items:
        yield from unset_variables(value)
