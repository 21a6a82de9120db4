"""The modules in a plan, and the addresses of its values: `tools.tool-bash.config.timeout`.

Entries of a list are addressed by instance id, module id or position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, with_items
from amplifier_app.plan.tree.problems import suggest
from amplifier_core.module_sources import PARTS, SECTION_KINDS
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


Path = tuple[str, ...]


class NoSuchPath(LookupError):
    """An address that does not exist.

    Attributes:
        at: The part of the address that exists, joined with dots.
        segment: The first segment that does not exist.
        known: The segments available there.
    """

    def __init__(self, at: str, segment: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no {segment!r} in {at or 'the plan'}")
        self.at = at
        self.segment = segment
        self.known = tuple(known)

    @property
    def hint(self) -> str | None:
        """The closest available segment, or all of them."""
        return suggest(self.segment, self.known) if self.known else None


def parse_path(path: str | Sequence[str | int]) -> Path:
    """The segments of an address.

    `orchestrator`, `context` and `fallbacks` at the top are short for those of `session`.

    Raises:
        ValueError: A segment is empty.
    """
    segments = path.split(".") if isinstance(path, str) else [str(part) for part in path]
    if not all(segments):
        raise ValueError(f"{path!r} is not a path like 'tools.tool-bash.config.timeout'")
    if segments[0] in (*PARTS, "fallbacks"):
        segments.insert(0, "session")
    return tuple(segments)


def find(root: Node, path: Path) -> Node:
    """The node at an address.

    Raises:
        NoSuchPath: It does not exist.
    """
    node = root
    for depth, segment in enumerate(path):
        node = _child(node, segment, path[:depth])
    return node


def find_or_none(root: Node, path: Path) -> Node | None:
    """The node at an address; None if it does not exist."""
    try:
        return find(root, path)
    except NoSuchPath:
        return None


def with_value(root: MapNode, path: Path, value: Node) -> MapNode:
    """A tree with `value` at an address; missing mappings are created.

    Raises:
        NoSuchPath: It passes through a missing list entry, or through a scalar.
    """
    changed = _replace(root, path, value, ())
    assert isinstance(changed, MapNode)
    return changed


def _replace(node: Node | None, path: Path, value: Node, done: Path) -> Node:
    if not path:
        return value
    segment, rest = path[0], path[1:]
    here = (*done, segment)
    if node is None:
        return MapNode({segment: _replace(None, rest, value, here)}, value.at)
    if isinstance(node, MapNode):
        below = node.items.get(segment)
        items = {**node.items, segment: _replace(below, rest, value, here)}
        return MapNode(items, node.at, {**node.keys, segment: node.keys.get(segment, value.at)})
    if isinstance(node, ListNode):
        index = _index(node, segment, done)
        items = list(node.items)
        items[index] = _replace(items[index], rest, value, here)
        return ListNode(items, node.at)
    if node.value is None:
        # An empty value becomes a mapping.
        return _replace(None, path, value, done)
    raise NoSuchPath(".".join(done), segment, ())


def _child(node: Node, segment: str, done: Path) -> Node:
    if isinstance(node, MapNode):
        if segment in node.items:
            return node.items[segment]
        raise NoSuchPath(".".join(done), segment, list(node.items))
    if isinstance(node, ListNode):
        return node.items[_index(node, segment, done)]
    raise NoSuchPath(".".join(done), segment, ())


def _index(node: ListNode, segment: str, done: Path) -> int:
    keys = [entry_key(entry) for entry in node.items]
    if segment in keys:
        return keys.index(segment)
    if segment.isdecimal() and int(segment) < len(node.items):
        return int(segment)
    known = [key if key is not None else str(i) for i, key in enumerate(keys)]
    raise NoSuchPath(".".join(done), segment, known)
