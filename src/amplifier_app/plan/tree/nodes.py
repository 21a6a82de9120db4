"""A YAML document as a tree in which every value has its location, and the limits of such trees.

Nodes are immutable: merging and interpolation create new ones, so an anchor used in ten places is
one object and a plan can be resolved again with other overrides. They are named tuples because
these classes are created at every start of the program.

The limits count the bytes, values and expanded variables of all documents of a plan: it extends profiles,
includes bundles and reads agents, settings and text files, so limits of single documents would not be
enough. They are far above what plans contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from amplifier_app.base.errors import Location
from amplifier_support.named_tuple import NamedTuple

ScalarValue: TypeAlias = str | int | float | bool | None


class Scalar(NamedTuple):
    """One value that is neither a mapping nor a list.

    Attributes:
        value: Its value.
        at: Where it was written.
        plain: Written without quotes, so its type follows YAML's rules.
        literal: `${…}` in it is not expanded.
        expression: The text before variables were expanded, if it contains any.
        secret: Expanded from a variable whose name suggests a secret.
        unset: Its unset variables, where these are not an error; `value` is then the text before
            expansion.
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
        """Return the location of `key`, or of the mapping if it is generated."""
        return self.keys.get(key, self.at)

    def text(self, key: str) -> str | None:
        """The value of `key`, if it is a string."""
        return read_text(self.items.get(key))

    def mapping(self, key: str) -> MapNode:
        """The mapping at `key`, or else an empty one."""
        node = self.items.get(key)
        return node if isinstance(node, MapNode) else MapNode({}, self.at)

    def listed(self, key: str) -> Sequence[Node]:
        """The entries of the list at `key`; empty without a list."""
        node = self.items.get(key)
        return node.items if isinstance(node, ListNode) else ()

    def with_item(self, key: str, value: Node) -> MapNode:
        """The mapping with another value at `key`."""
        return with_items(self, {**self.items, key: value})


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


def to_node(data: Any, at: Location, *, literal: bool = False) -> Node:
    """Plain data as a tree with `at` as the location of every node.

    Raises:
        TypeError: `data` contains a type that plans do not support.
    """
    if isinstance(data, dict):
        mapping: dict[Any, Any] = data
        items = {str(key): to_node(value, at, literal=literal) for key, value in mapping.items()}
        return MapNode(items, at)
    if isinstance(data, list):
        values: list[Any] = data
        return ListNode([to_node(value, at, literal=literal) for value in values], at)
    if data is None or isinstance(data, (str, int, float, bool)):
        return Scalar(data, at, literal=literal)
    raise TypeError(f"a plan cannot contain a value of type {type(data).__name__}")


def scalars(node: Node) -> Iterator[Scalar]:
    """Every value of a tree that is neither a mapping nor a list, in order."""
    if isinstance(node, Scalar):
        yield node
        return
    for below in node.items.values() if isinstance(node, MapNode) else node.items:
        yield from scalars(below)


def map_scalars(node: Node, change: Callable[[Scalar], Scalar]) -> Node:
    """The tree with every scalar changed; locations of mappings and lists are kept."""
    if isinstance(node, Scalar):
        return change(node)
    if isinstance(node, MapNode):
        items = {key: map_scalars(value, change) for key, value in node.items.items()}
        return with_items(node, items)
    return ListNode([map_scalars(value, change) for value in node.items], node.at)


def literal(node: Node) -> Node:
    """The node with every `${…}` in it kept as it is."""
    return map_scalars(node, lambda scalar: scalar._replace(literal=True))


def read_text(node: Node | None) -> str | None:
    """The node's value, if it is a string."""
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def with_items(node: MapNode, items: Mapping[str, Node]) -> MapNode:
    """The mapping with other items; the locations of keys are kept."""
    return MapNode(items, node.at, node.keys)


MAX_BYTES = 1024 * 1024
"""Of one document."""

MAX_TOTAL_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 50_000
MAX_REPEATED = 1024 * 1024
"""Characters that aliases repeat: most readers of a plan look at each of them."""

MAX_NUMBER_LENGTH = 256
"""Characters of one number: parsing a long one takes quadratic time."""

MAX_EXPANDED = 4 * 1024 * 1024
"""Characters of all variables and their values."""

VARIABLE_COST = 64
"""Characters that a variable counts in addition to its own."""

MAX_NESTED_VARIABLES = 16
MAX_PROBLEMS = 100
MAX_MESSAGE_LENGTH = 400


Cost: TypeAlias = Literal["bytes", "values", "repeated", "expanded"]
"""Bytes of documents, values with those that aliases repeat, characters that aliases repeat, and characters of
variables and their values."""


class Budget:
    """The remaining limits of the documents of one plan."""

    def __init__(self) -> None:
        self._left: dict[Cost, int] = {
            "bytes": MAX_TOTAL_BYTES,
            "values": MAX_VALUES,
            "repeated": MAX_REPEATED,
            "expanded": MAX_EXPANDED,
        }

    def spend(self, what: Cost, count: int) -> bool:
        """Count a cost; False if it is too much."""
        self._left[what] -= count
        return self._left[what] >= 0
