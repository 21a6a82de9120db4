"""Explain a plan to its author: where each value was set and which values it replaced, what a key means, what differs
from another plan, both as written, and the plan as readable YAML with the origin of each value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import yaml

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.overrides import apply_sets
from amplifier_app.plan.schema.grammar import AGENT, PLAN
from amplifier_app.plan.schema.json_schema import Definitions
from amplifier_app.plan.schema.module_schemas import keys_at, rule_at, schema_of_installed
from amplifier_app.plan.schema.rules import Schema, Shape, normalise
from amplifier_app.plan.tree.entries import (
    ENTRY_SECTIONS,
    NoSuchPath,
    Path,
    entry_key,
    entry_keys,
    find,
    find_or_none,
    parse_path,
)
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, plain_data, read_text
from amplifier_app.plan.tree.problems import Problems, suggest
from amplifier_app.plan.tree.yaml_writer import write_yaml
from amplifier_core.module_sources import PARTS
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import nearest


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


def _values_at(plan: ResolvedPlan, path: Path) -> list[Value]:
    """The scalar values at and below an address, each with its history.

    Args:
        plan: The plan, loaded with `keep_unset`.
        path: The address, as `amplifier_app.plan.tree.entries.parse_path` gives it.

    Raises:
        NoSuchPath: No file sets anything there.
    """
    final = masked_tree(plan.tree)
    stages = [(file, masked_tree(tree, written=True)) for file, tree in _stages(plan)]
    try:
        subtree, gone = find(final, path), None
    except NoSuchPath as error:
        before = _last_with(stages, path)
        if before is None:
            raise error
        final, subtree, removed_by = before
        gone = _why_gone(plan, path, removed_by)
    path = _by_key(final, path)
    trees = [tree for _, tree in stages]
    return [
        Value(where, node, _written(node, trees, where), _replaced(node, trees, where), gone)
        for where, node in leaves(subtree, path)
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


def _stages(plan: ResolvedPlan) -> Iterator[tuple[str, MapNode]]:
    """The plan after each file and each `--set`, before variables are expanded."""
    yield from plan.merged.stages
    problems = Problems()
    for count in range(1, len(plan.chosen.sets) + 1):
        changed = apply_sets(plan.merged.document, plan.chosen.sets[:count], problems)
        yield "--set", normalise(changed, "--set", problems, PLAN)


def _last_with(
    stages: Sequence[tuple[str, Node]], path: Path
) -> tuple[Node, Node, str | None] | None:
    """The last stage that has a value at an address, the value, and the file that removed it."""
    removed_by = None
    for file, tree in reversed(stages):
        node = find_or_none(tree, path)
        if node is not None:
            return tree, node, removed_by
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
        below = find_or_none(tree, path)
        if below is not None and (not seen or seen[-1].at != below.at):
            seen.append(below)
    if seen and seen[-1].at == node.at:
        seen.pop()
    if path[-1] in ("module", "instance_id"):
        # Every file repeats the key of an entry without changing anything.
        seen = [earlier for earlier in seen if read_text(earlier) != read_text(node)]
    return tuple(reversed(seen))


def _written(node: Node, trees: Sequence[Node], path: Path) -> str | None:
    if not isinstance(node, Scalar) or node.expression is None or not trees:
        return None
    written = find_or_none(trees[-1], path)
    text = written.value if isinstance(written, Scalar) else None
    return text if isinstance(text, str) and text != node.value else None


def dotted(path: Path) -> str:
    """The address as a person writes it."""
    return ".".join(path)


def as_json(value: Value) -> dict[str, Any]:
    """The value and its history as plain data."""
    facts: dict[str, Any] = {
        "path": dotted(value.path),
        "value": plain_data(value.node),
        "at": str(value.node.at),
        "replaced": [
            {"value": plain_data(earlier), "at": str(earlier.at)} for earlier in value.replaced
        ],
    }
    if value.written is not None:
        facts["written"] = value.written
    if value.gone is not None:
        facts["gone"] = value.gone
    return facts


_NOT_MERGED = ("extends", "exclude", *(f"{part}_source" for part in PARTS))
"""Keys of documents that merged plans do not have."""
_TYPO = 0.8
"""Minimum similarity of two names that differ by a typo."""


class Explained(NamedTuple):
    """One value, or an unset key of a module's config.

    Attributes:
        path: Its address.
        value: The value with its history; None if it is not set.
        rule: Its rule in the module's schema: `description`, `default`; None if no schema has it.
        mistake: That the module refuses its key, if it does.
    """

    path: Path
    value: Value | None
    rule: Schema | None
    mistake: str | None = None


def explain(plan: ResolvedPlan, address: str) -> list[Explained]:
    """Explain an address and everything below it.

    Args:
        plan: The plan, loaded with `keep_unset`.
        address: Such as `tools.tool-bash.config.timeout`. For a module's config the unset keys
            are included.

    Raises:
        ConfigError: Neither the plan nor a module's schema has it; with a suggestion.
    """
    try:
        path = parse_path(address)
    except ValueError as error:
        raise ConfigError(str(error), is_usage=True) from None
    schemas = _Schemas(plan)
    try:
        values, missing = _values_at(plan, path), None
    except NoSuchPath as error:
        values, missing = [], error
    explained = [
        Explained(value.path, value, schemas.rule(value.path), schemas.mistake(value.path))
        for value in values
    ]
    explained += _unset(path, values, schemas)
    if missing is not None and not explained:
        raise _unknown(path, missing, schemas)
    return explained


def misspelling(plan: ResolvedPlan, address: str) -> str | None:
    """Why there can be no value at an address; None if there is one, or could be.

    Args:
        plan: The plan.
        address: Such as `session.budget.max_cost`.
    """
    try:
        path = parse_path(address)
        find(plan.merged.document, path)
    except ValueError as error:
        return str(error)
    except NoSuchPath as error:
        path = parse_path(address)
        missing = _missing_entry(path, error) or _unknown_key(plan, path)
        if missing is not None:
            return f"{missing}; {missing.hint}" if missing.hint else str(missing)
    return None


def _missing_entry(path: Path, missing: NoSuchPath) -> NoSuchPath | None:
    """`missing`, if it is an entry or an agent that is named by mistake."""
    depth = len(missing.at.split(".")) if missing.at else 0
    in_agent = 2 if path[0] == "agents" else 0
    if depth != 1 + in_agent or path[depth - 1] not in ENTRY_SECTIONS:
        is_mistake = (depth, in_agent) == (1, 2) and len(path) > 2
        return missing if is_mistake else None
    # The plan may lack a module on purpose, but not one whose name is a typo of another.
    is_typo = (
        nearest(missing.segment, missing.known, _TYPO) and missing.segment not in bundled_modules()
    )
    return missing if len(path) > depth + 1 or is_typo else None


def _unknown_key(plan: ResolvedPlan, path: Path) -> NoSuchPath | None:
    """The first key on the way to a value that neither plans nor the module's config can have."""
    start, in_agent = _config_depth(path), 2 if path[0] == "agents" else 0
    if start:
        schema, keys = _Schemas(plan).of(path), path[start:]
    else:
        start, keys = in_agent, path[in_agent:]
        schema = _grammar(AGENT if in_agent else PLAN)
        if keys[:1] and keys[0] in ENTRY_SECTIONS:
            # The schema knows entries by position only.
            keys = (keys[0], *("0" for _ in keys[1:2]), *keys[2:])
    if schema is None:
        return None
    for depth, key in enumerate(keys):
        known = [name for name in keys_at(schema, keys[:depth]) if name not in _NOT_MERGED]
        if known and key not in known:
            return NoSuchPath(dotted(path[: start + depth]), key, known)
    return None


def _grammar(shape: Shape) -> Schema:
    definitions = Definitions(())
    schema = shape.schema(definitions)
    return {**schema, "$defs": definitions.found}


def _unset(path: Path, values: list[Value], schemas: _Schemas) -> list[Explained]:
    """The unset keys at an address of a config."""
    schema = schemas.of(path)
    if schema is None:
        return []
    depth = _config_depth(path)
    if len(path) == depth:
        named = {value.path[depth] for value in values if len(value.path) > depth}
        paths = [(*path, key) for key in keys_at(schema, ()) if key not in named]
    else:
        paths = [] if values else [path]
    return [
        Explained(address, None, rule)
        for address in paths
        if (rule := schemas.rule(address)) is not None
    ]


def _unknown(path: Path, missing: NoSuchPath, schemas: _Schemas) -> ConfigError:
    """The error for an unknown address, with a suggestion."""
    schema = schemas.of(path)
    start = _config_depth(path)
    at, segment, known = missing.at, missing.segment, list(missing.known)
    for depth in range(start, len(path)) if schema is not None else ():
        if schemas.rule(path[: depth + 1]) is None:
            at, segment = dotted(path[:depth]), path[depth]
            known = keys_at(schema, path[start:depth]) if schema is not None else []
            break
    error = NoSuchPath(at, segment, known)
    return ConfigError(str(error), hint=error.hint, is_usage=True)


def _config_depth(path: Path) -> int:
    """The number of segments up to the config that an address is in; 0 outside a config.

    3 as in `tools.tool-bash.config`, 5 as in `agents.reviewer.tools.tool-bash.config`.
    """
    depth = 5 if path[:1] == ("agents",) else 3
    return depth if path[depth - 1 : depth] == ("config",) else 0


class _Schemas:
    """The config schemas of a plan's bundled and installed modules."""

    def __init__(self, plan: ResolvedPlan) -> None:
        self._plan = plan
        self._known: dict[Path, Schema | None] = {}

    def rule(self, path: Path) -> Schema | None:
        """The schema's rule for one key of a config."""
        schema = self.of(path)
        return rule_at(schema, path[_config_depth(path) :]) if schema is not None else None

    def mistake(self, path: Path) -> str | None:
        """Return that the module refuses a key of its config; None if it does not."""
        schema, key = self.of(path) or {}, "".join(path[_config_depth(path) :][:1])
        is_closed = schema.get("additionalProperties") is False
        if not key or not is_closed or key in schema.get("properties", {}):
            return None
        return f"the module has no key {key!r}; {suggest(key, keys_at(schema, ()))}"

    def of(self, path: Path) -> Schema | None:
        """The schema of the config that an address is in."""
        depth = _config_depth(path)
        if not depth:
            return None
        module = path[: depth - 1]
        if module not in self._known:
            self._known[module] = self._read(module)
        return self._known[module]

    def _read(self, path: Path) -> Schema | None:
        entry = self._entry(path)
        module = read_text(entry.items.get("module")) if entry is not None else None
        if entry is None or module is None:
            return None
        if "source" in entry.items or module in self._plan.sources:
            return None
        try:
            return schema_of_installed(module)
        except ModuleError:
            # Broken modules are reported by `plan check`, not here.
            return None

    def _entry(self, path: Path) -> MapNode | None:
        trees = (self._plan.tree, self._plan.merged.document)
        nodes = (find_or_none(tree, path) for tree in trees)
        return next((node for node in nodes if isinstance(node, MapNode)), None)


class Change(NamedTuple):
    """One address at which two plans differ; secrets are masked.

    Attributes:
        path: The address. The address of a section means that the order of its entries differs.
        old: The value in the first plan, if any.
        new: The value in the second plan, if any.
    """

    path: Path
    old: Node | None
    new: Node | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


def differences(old: MergedPlan, new: MergedPlan) -> list[Change]:
    """The differences in the order of the first plan, then additions of the second one.

    Variables are compared as written, list entries by key.
    """
    before, after = dict(leaves(old.document)), dict(leaves(new.document))
    shown_old = masked_tree(old.document, written=True)
    shown_new = masked_tree(new.document, written=True)
    changes: list[Change] = []
    for path in dict.fromkeys((*before, *after)):
        mine, theirs = before.get(path), after.get(path)
        if mine is not None and theirs is not None and plain_data(mine) == plain_data(theirs):
            continue
        changes.append(
            Change(
                path,
                None if mine is None else _shown(shown_old, path),
                None if theirs is None else _shown(shown_new, path),
            )
        )
    return [*changes, *_order_changes(old, new)]


def _shown(masked: Node, path: Path) -> Node:
    """The value at an address of a masked tree; a masked parent hides it."""
    for depth in range(len(path) + 1):
        node = find(masked, path[:depth])
        if isinstance(node, Scalar):
            return node
    return find(masked, path)


def _order_changes(old: MergedPlan, new: MergedPlan) -> list[Change]:
    changes: list[Change] = []
    for section in ENTRY_SECTIONS:
        before, after = entry_keys(old.document, section), entry_keys(new.document, section)
        common = set(before) & set(after)
        mine = [key for key in before if key in common]
        theirs = [key for key in after if key in common]
        if mine != theirs:
            pair = [
                ListNode([Scalar(key, tree.at) for key in keys], tree.items[section].at)
                for keys, tree in ((mine, old.document), (theirs, new.document))
            ]
            changes.append(Change((section,), *pair))
    return changes


def yaml_text(tree: Node, *, origins: bool = False) -> str:
    """The tree as YAML.

    Args:
        tree: The tree to write, with secrets masked.
        origins: Whether to add the file and line of each value as a comment.
    """
    text = write_yaml(plain_data(tree))
    if not origins:
        return text
    lines = text.splitlines()
    _annotate(yaml.compose(text, Loader=yaml.SafeLoader), tree, lines)
    return "\n".join(lines) + "\n"


def collect_origins(tree: Node) -> Any:
    """The tree with each value replaced by where it was written, as `file:line`."""
    if isinstance(tree, MapNode) and tree.items:
        return {key: collect_origins(value) for key, value in tree.items.items()}
    if isinstance(tree, ListNode) and tree.items:
        return [collect_origins(value) for value in tree.items]
    return describe_place(tree)


def describe_place(node: Node) -> str:
    """Return the location of a value, as `file:line`."""
    return str(node.at._replace(column=None))


def show_place(node: Node) -> str:
    """Return the location of a value, for people: `default.yaml:9 (bundled)`, `plan.yaml:5
    (session)`.
    """
    place = describe_place(node)
    if place.startswith(f"{paths.bundled_profiles_dir()}{os.sep}"):
        return f"{os.path.basename(place)} (bundled)"
    if place.startswith(f"{paths.sessions_dir()}{os.sep}"):
        return f"{os.path.basename(place)} (session)"
    return place


def _annotate(written: Any, tree: Node, lines: list[str]) -> None:
    if isinstance(tree, MapNode) and tree.items:
        for (_, below), value in zip(written.value, tree.items.values(), strict=True):
            _annotate(below, value, lines)
    elif isinstance(tree, ListNode) and tree.items:
        for below, value in zip(written.value, tree.items, strict=True):
            _annotate(below, value, lines)
    else:
        # For a block scalar this is the line with its '|', where a comment is allowed.
        place = re.sub(r"[^ -~\w]", "?", show_place(tree))
        lines[written.start_mark.line] += f"  # {place}"
