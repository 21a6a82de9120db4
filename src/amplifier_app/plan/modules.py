"""The modules that a plan mounts here and now, each with its place in the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.nodes import ListNode, MapNode, Node, Scalar, text_of
from amplifier_app.plan.structure import PARTS, entry_key

KINDS = {"providers": "provider", "tools": "tool", "hooks": "hook"}
"""The sections that hold lists of modules, and what they hold."""


class PlannedModule(NamedTuple):
    """One module of a plan.

    Attributes:
        kind: `"orchestrator"`, `"context"`, `"provider"`, `"tool"` or `"hook"`.
        key: What a person calls it: its instance id, else its module id.
        module: Its module id.
        source: The source the plan names for it.
        entry: What the plan says of it.
    """

    kind: str
    key: str
    module: str
    source: str | None
    entry: MapNode


def planned_modules(plan: ResolvedPlan) -> list[PlannedModule]:
    """The modules in the order they are mounted."""
    session = plan.tree.items["session"]
    assert isinstance(session, MapNode)
    found: list[tuple[str, Node]] = [(part, session.items[part]) for part in PARTS]
    for section, kind in KINDS.items():
        entries = plan.tree.items.get(section)
        found += [(kind, entry) for entry in entries.items] if isinstance(entries, ListNode) else []
    return [
        PlannedModule(
            kind,
            entry_key(entry) or "",
            text_of(entry.items.get("module")) or "",
            text_of(entry.items.get("source")),
            entry,
        )
        for kind, entry in found
        if isinstance(entry, MapNode)
    ]


def unset_variables(node: Node) -> Iterator[str]:
    """The variables that a part of a plan names and that are not set; see `Scalar.unset`."""
    if isinstance(node, Scalar):
        yield from node.unset
        return
    for value in node.items.values() if isinstance(node, MapNode) else node.items:
        yield from unset_variables(value)
