"""The modules in a plan: kinds, sections, the key of an entry, and the one walk over all entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, with_items
from amplifier_core.discovery import PARTS, SECTION_KINDS
from amplifier_support.named_tuple import NamedTuple

ModuleKind = Literal["provider", "tool", "hook", "orchestrator", "context"]

SECTION_OF = MappingProxyType({kind: section for section, kind in SECTION_KINDS.items()})
"""Kind of module → the section that lists its modules."""

ENTRY_SECTIONS = tuple(SECTION_KINDS)
PROVIDER_PREFIX = "provider-"


class ModuleEntry(NamedTuple):
    """A module in a normalised plan.

    Attributes:
        kind: `"orchestrator"`, `"context"`, `"provider"`, `"tool"` or `"hook"`.
        path: Its address, with positions in lists.
        node: The entry.
        agent: The agent it belongs to; None for the plan's own modules.
    """

    kind: str
    path: tuple[str, ...]
    node: MapNode
    agent: str | None = None


def entry_key(entry: Node) -> str | None:
    """The key of a list entry: its instance id, else its module id."""
    if not isinstance(entry, MapNode):
        return None
    return entry.text("instance_id") or entry.text("module")


def mounted_as(entry: MapNode) -> str:
    """The name a provider is mounted under."""
    return entry.text("instance_id") or (entry.text("module") or "").removeprefix(PROVIDER_PREFIX)


def list_entries(document: MapNode, section: str) -> list[MapNode]:
    """The entries of a section."""
    return [entry for entry in document.listed(section) if isinstance(entry, MapNode)]


def entry_keys(document: MapNode, section: str) -> list[str]:
    """The keys of the entries of a section, in order."""
    return [
        key for entry in list_entries(document, section) if (key := entry_key(entry)) is not None
    ]


def module_entries(plan: MapNode) -> Iterator[ModuleEntry]:
    """Every module of a plan in mount order, followed by those of its agents."""
    yield from _entries(plan)
    for name, agent in plan.mapping("agents").items.items():
        if isinstance(agent, MapNode):
            for entry in _entries(agent):
                yield entry._replace(path=("agents", name, *entry.path), agent=name)


def _entries(document: MapNode) -> Iterator[ModuleEntry]:
    session = document.mapping("session")
    for part in PARTS:
        node = session.items.get(part)
        if isinstance(node, MapNode):
            yield ModuleEntry(part, ("session", part), node)
    for section, kind in SECTION_KINDS.items():
        for index, entry in enumerate(list_entries(document, section)):
            yield ModuleEntry(kind, (section, str(index)), entry)


def with_agents(plan: MapNode, change: Callable[[str, MapNode], Node]) -> MapNode:
    """The plan with each of its agents changed, given its name and itself."""
    agents = plan.items.get("agents")
    if not isinstance(agents, MapNode):
        return plan
    items = {
        name: change(name, agent) if isinstance(agent, MapNode) else agent
        for name, agent in agents.items.items()
    }
    return plan.with_item("agents", with_items(agents, items))


def keep_entries(
    document: MapNode, keep: Callable[[MapNode], bool], sections: Iterable[str] = ENTRY_SECTIONS
) -> MapNode:
    """The document with only some of the entries of its sections."""
    for section in sections:
        node = document.items.get(section)
        if isinstance(node, ListNode):
            kept = [entry for entry in node.items if not isinstance(entry, MapNode) or keep(entry)]
            document = document.with_item(section, ListNode(kept, node.at))
    return document


def mounted_entries(mount_plan: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """The kind, address and entry of every module of a mount plan, in mount order."""
    for part in PARTS:
        yield part, ("session", part), mount_plan["session"][part]
    for section, kind in SECTION_KINDS.items():
        for index, entry in enumerate(mount_plan.get(section) or ()):
            yield kind, (section, str(index)), entry
