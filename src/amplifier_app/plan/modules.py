"""The modules that a plan mounts, each with its entry in the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.nodes import ListNode, MapNode, Node, Scalar, text_of
from amplifier_app.plan.shapes import PARTS
from amplifier_app.plan.structure import entry_key

KINDS = {"providers": "provider", "tools": "tool", "hooks": "hook"}
"""Section with a list of modules → kind of its modules."""


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
    return list(_modules(plan.tree))


def agent_modules(plan: ResolvedPlan) -> list[PlannedModule]:
    """The modules of a plan's agents: additional ones, or modules of the plan with other settings.

    If an agent only changes a module of the plan, the plan's source applies.
    """
    sources = {(one.kind, one.key): one.source for one in planned_modules(plan)}
    agents = plan.tree.items.get("agents")
    return [
        one._replace(agent=name, source=one.source or sources.get((one.kind, one.key)))
        for name, agent in (agents.items.items() if isinstance(agents, MapNode) else ())
        if isinstance(agent, MapNode)
        for one in _modules(agent)
        if one.module
    ]


def _modules(document: MapNode) -> Iterator[PlannedModule]:
    session = document.items.get("session")
    parts = session.items if isinstance(session, MapNode) else {}
    found: list[tuple[str, Node]] = [(part, parts[part]) for part in PARTS if part in parts]
    for section, kind in KINDS.items():
        entries = document.items.get(section)
        found += [(kind, entry) for entry in entries.items] if isinstance(entries, ListNode) else []
    for kind, entry in found:
        if isinstance(entry, MapNode):
            module = text_of(entry.items.get("module")) or ""
            source = text_of(entry.items.get("source"))
            yield PlannedModule(kind, entry_key(entry) or "", module, source, entry)


def unset_variables(node: Node) -> Iterator[str]:
    """The unset variables in a part of a plan; see `Scalar.unset`."""
    if isinstance(node, Scalar):
        yield from node.unset
        return
    for value in node.items.values() if isinstance(node, MapNode) else node.items:
        yield from unset_variables(value)
