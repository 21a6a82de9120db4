"""A YAML document as a tree in which every value knows where it was written.

Nodes are never changed once built: merging and interpolation make new ones, so an
anchor used in ten places is one object and a plan can be resolved again with other
overrides. Named tuples, because every start of the program pays for making the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from amplifier_app.base.errors import Location

ScalarValue: TypeAlias = str | int | float | bool | None


class Scalar(NamedTuple):
    """One value that is neither a mapping nor a list.

    Attributes:
        value: What it stands for.
        at: Where it was written.
        plain: Written without quotes, so that YAML rules gave it its type.
        literal: Taken as it is: `${…}` inside it means nothing.
        expression: The text before variables were filled in, if it named any.
        secret: Filled in from a variable whose name says that it is a secret.
        unset: The variables it names that are not set, where that is no error; `value` then is
            the text with nothing filled in.
    """

    value: ScalarValue
    at: Location
    plain: bool = True
    literal: bool = False
    expression: str | None = None
    secret: bool = False
    unset: tuple[str, ...] = ()


class MapNode(NamedTuple):
    """A mapping; `keys` holds where each key was written."""

    items: Mapping[str, Node]
    at: Location
    keys: Mapping[str, Location] = MappingProxyType({})

    def key_at(self, key: str) -> Location:
        """Where `key` was written, or the mapping itself if it was not written by hand."""
        return self.keys.get(key, self.at)


class ListNode(NamedTuple):
    """A list."""

    items: Sequence[Node]
    at: Location


Node: TypeAlias = Scalar | MapNode | ListNode

NOWHERE = Location("(built in)")


def plain_data(node: Node) -> Any:
    """The node as dicts, lists and scalars, freshly built."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, MapNode):
        return {key: plain_data(value) for key, value in node.items.items()}
    return [plain_data(value) for value in node.items]


def node_of(data: Any, at: Location, *, literal: bool = False) -> Node:
    """Plain data as a tree whose every node says `at`.

    Raises:
        TypeError: `data` holds something YAML has no plain form for.
    """
    if isinstance(data, dict):
        mapping: dict[Any, Any] = data
        items = {str(key): node_of(value, at, literal=literal) for key, value in mapping.items()}
        return MapNode(items, at)
    if isinstance(data, list):
        values: list[Any] = data
        return ListNode([node_of(value, at, literal=literal) for value in values], at)
    if data is None or isinstance(data, (str, int, float, bool)):
        return Scalar(data, at, literal=literal)
    raise TypeError(f"{type(data).__name__} has no place in a plan")


def text_of(node: Node | None) -> str | None:
    """The node's text, if it is a scalar holding text."""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    return None


def with_items(node: MapNode, items: Mapping[str, Node]) -> MapNode:
    """The mapping with other items; places of keys are kept."""
    return MapNode(items, node.at, node.keys)
