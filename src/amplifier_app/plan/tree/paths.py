"""Addresses inside a plan: `tools.tool-bash.config.timeout`.

Entries of a list are addressed by instance id, module id or position.
"""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.plan.tree.entries import entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node
from amplifier_core.module_sources import PARTS

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
