"""The history of a value in a plan: where it was set, and which values it replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.overrides import apply_sets
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.schema.structure import normalise
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, plain_data, read_text
from amplifier_app.plan.tree.paths import NoSuchPath, Path, find
from amplifier_app.plan.tree.problems import Problems
from amplifier_support.named_tuple import NamedTuple


class Value(NamedTuple):
    """One value of a plan; secrets are masked.

    Attributes:
        path: Its address.
        node: The value, and where it was written.
        written: The text before variables were expanded, if it contains any.
        replaced: The previous values, the latest first.
        gone: Why the value has no effect, if it has none.
    """

    path: Path
    node: Node
    written: str | None = None
    replaced: tuple[Node, ...] = ()
    gone: str | None = None


def values_at(plan: ResolvedPlan, path: Path) -> list[Value]:
    """The scalar values at and below an address, each with its history.

    Args:
        plan: The plan, loaded with `keep_unset`.
        path: The address, as `amplifier_app.plan.tree.paths.parse_path` gives it.

    Raises:
        NoSuchPath: No file sets anything there.
    """
    final = masked_tree(plan.tree)
    stages = [(file, masked_tree(tree, written=True)) for file, tree in _stages(plan)]
    try:
        found, gone = find(final, path), None
    except NoSuchPath as error:
        before = _last_with(stages, path)
        if before is None:
            raise error
        final, found, gone = before.tree, before.node, _why_gone(plan, path, before.file)
    path = _by_key(final, path)
    trees = [tree for _, tree in stages]
    return [
        Value(where, node, _written(node, trees, where), _replaced(node, trees, where), gone)
        for where, node in leaves(found, path)
    ]


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """The leaf values of a tree with their addresses: scalars, lists, empty mappings."""
    if isinstance(node, MapNode) and node.items:
        for key, value in node.items.items():
            yield from leaves(value, (*path, key))
    elif isinstance(node, ListNode) and _is_section(path):
        for index, entry in enumerate(node.items):
            yield from leaves(entry, (*path, entry_key(entry) or str(index)))
    else:
        yield path, node


def _is_section(path: Path) -> bool:
    """Return True for the address of a list of modules in the plan or in an agent."""
    own = path[2:] if path[:1] == ("agents",) else path
    return len(own) == 1 and own[0] in ENTRY_SECTIONS


class _Found(NamedTuple):
    tree: Node
    node: Node
    file: str | None


def _stages(plan: ResolvedPlan) -> Iterator[tuple[str, MapNode]]:
    """The plan after each file and each `--set`, before variables are expanded."""
    yield from plan.merged.stages
    problems = Problems()
    for count in range(1, len(plan.chosen.sets) + 1):
        changed = apply_sets(plan.merged.document, plan.chosen.sets[:count], problems)
        yield "--set", normalise(changed, "--set", problems, PLAN)


def _last_with(stages: Sequence[tuple[str, Node]], path: Path) -> _Found | None:
    """The last stage that has a value at an address, and the file that removed it."""
    removed_by = None
    for file, tree in reversed(stages):
        node = _get(tree, path)
        if node is not None:
            return _Found(tree, node, removed_by)
        removed_by = file
    return None


def _why_gone(plan: ResolvedPlan, path: Path, removed_by: str | None) -> str:
    if removed_by is not None:
        return f"removed by {removed_by}"
    for dropped in plan.dropped:
        if path[:2] == ("providers", dropped.key):
            return dropped.note
    return "the condition is met and no longer needed"


def _by_key(tree: Node, path: Path) -> Path:
    """The address with list entries named by key instead of position."""
    named: list[str] = []
    for segment in path:
        parent = find(tree, tuple(named))
        key = entry_key(find(tree, (*named, segment))) if isinstance(parent, ListNode) else None
        named.append(key or segment)
    return tuple(named)


def _replaced(node: Node, trees: Sequence[Node], path: Path) -> tuple[Node, ...]:
    seen: list[Node] = []
    for tree in trees:
        below = _get(tree, path)
        if below is not None and (not seen or seen[-1].at != below.at):
            seen.append(below)
    if seen and seen[-1].at == node.at:
        seen.pop()
    if path[-1] in ("module", "instance_id"):
        # Every file repeats the key of an entry without changing anything.
        seen = [one for one in seen if read_text(one) != read_text(node)]
    return tuple(reversed(seen))


def _written(node: Node, trees: Sequence[Node], path: Path) -> str | None:
    if not isinstance(node, Scalar) or node.expression is None or not trees:
        return None
    written = _get(trees[-1], path)
    text = written.value if isinstance(written, Scalar) else None
    return text if isinstance(text, str) and text != node.value else None


def _get(tree: Node, path: Path) -> Node | None:
    try:
        return find(tree, path)
    except NoSuchPath:
        return None


def dotted(path: Path) -> str:
    """The address as a person writes it."""
    return ".".join(path)


def as_json(value: Value) -> dict[str, Any]:
    """The value and its history as plain data."""
    facts: dict[str, Any] = {
        "path": dotted(value.path),
        "value": plain_data(value.node),
        "at": str(value.node.at),
        "replaced": [{"value": plain_data(one), "at": str(one.at)} for one in value.replaced],
    }
    if value.written is not None:
        facts["written"] = value.written
    if value.gone is not None:
        facts["gone"] = value.gone
    return facts
