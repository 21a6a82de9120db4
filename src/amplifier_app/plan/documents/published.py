"""The published form of profiles, bundles and agents, which other programs read as well.

Name and description may be in a table (`bundle:`, `profile:`, `meta:`, `agent:`), and sections of
other programs are warnings, not errors. Bundles may be YAML or Markdown; the kind of a document
depends on its tables, not on its suffix.
"""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, with_items
from amplifier_app.plan.tree.problems import Problems
from amplifier_support.named_tuple import NamedTuple

BUNDLE = "bundle"
"""The table that makes a document a bundle."""

_METADATA = ("version", "author", "license", "tags", "keywords", "homepage", "repository")


class Listed(NamedTuple):
    """One string of a list and its location."""

    text: str
    at: Location


class Lists(NamedTuple):
    """The lists that only published documents have.

    Attributes:
        includes: The included bundles.
        context: The files to append to the instruction.
        namespace_root: The folder of its namespace, if not its own.
    """

    includes: tuple[Listed, ...] = ()
    context: tuple[Listed, ...] = ()
    namespace_root: Listed | None = None


def without_tables(root: MapNode, tables: Sequence[str], problems: Problems) -> MapNode:
    """The document with the content of its tables moved to the top, and without metadata."""
    items: dict[str, Node] = {}
    keys = dict(root.keys)
    for key, node in root.items.items():
        if key not in tables:
            _add(items, keys, key, node, root.key_at(key), problems)
        elif isinstance(node, MapNode):
            for name, value in node.items.items():
                _add(items, keys, name, value, node.key_at(name), problems)
        else:
            hint = "expected a mapping with 'name' and 'description'"
            problems.add(f"{key!r} is not a mapping", root.key_at(key), hint)
    used = {key: node for key, node in items.items() if key not in _METADATA}
    return MapNode(used, root.at, keys)


def lists_in(root: MapNode, problems: Problems, *, includes: bool) -> tuple[MapNode, Lists]:
    """Split a document into the rest and its lists: `context.include` and `includes`.

    Args:
        root: The document.
        problems: Collects the problems of the lists.
        includes: Whether it may include bundles.
    """
    named: list[Listed] = []
    items = dict(root.items)
    if includes and (node := items.pop("includes", None)) is not None:
        named = _texts(node, "includes", problems)
    folder = items.get("namespace_root") if includes else None
    start = None
    if isinstance(folder, Scalar) and isinstance(folder.value, str):
        start = Listed(folder.value, folder.at)
        del items["namespace_root"]
    root, context = _without_context(with_items(root, items), problems)
    return root, Lists(tuple(named), context, start)


def _without_context(root: MapNode, problems: Problems) -> tuple[MapNode, tuple[Listed, ...]]:
    """A document or an agent without `context.include`, and the files listed there.

    All other keys of `context` configure the context manager.
    """
    context = root.items.get("context")
    if not isinstance(context, MapNode) or "include" not in context.items:
        return root, ()
    files = _texts(context.items["include"], "context.include", problems)
    rest = {key: value for key, value in context.items.items() if key != "include"}
    items = {**root.items, "context": with_items(context, rest)}
    if not rest:
        del items["context"]
    # Accept the `@` of an include line here too, where only files can be listed.
    return with_items(root, items), tuple(f._replace(text=f.text.lstrip("@")) for f in files)


def _texts(node: Node, where: str, problems: Problems) -> list[Listed]:
    texts: list[Listed] = []
    if isinstance(node, Scalar) and node.value is None:
        return texts
    for item in node.items if isinstance(node, ListNode) else [node]:
        value = item
        if isinstance(item, MapNode) and BUNDLE in item.items and where == "includes":
            value = item.items[BUNDLE]
            for key in item.items:
                if key != BUNDLE:
                    problems.note(f"{key!r} of an include is ignored", item.key_at(key))
        if isinstance(value, Scalar) and isinstance(value.value, str) and value.value.strip():
            texts.append(Listed(value.value.strip(), value.at))
        else:
            hint = "write '- bundle: ./FILE'" if where == "includes" else "write '- ./FILE'"
            problems.add(f"invalid entry in {where!r}", item.at, hint)
    return texts


def _add(
    items: dict[str, Node],
    keys: dict[str, Location],
    key: str,
    node: Node,
    at: Location,
    problems: Problems,
) -> None:
    if key in items:
        message = f"duplicate key {key!r}: first on line {keys[key].line}"
        problems.add(message, at, "keep one of them")
        return
    items[key] = node
    keys[key] = at
