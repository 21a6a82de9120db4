"""Explain an address of a plan: values, their history, and the description of a key."""

from __future__ import annotations

from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.plan.explain.history import Value, dotted, values_at
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.schema.grammar import AGENT, PLAN
from amplifier_app.plan.schema.json_schema import Definitions
from amplifier_app.plan.schema.module_schemas import keys_at, rule_at, schema_of_installed
from amplifier_app.plan.schema.rules import Schema
from amplifier_app.plan.schema.structure import Shape
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS
from amplifier_app.plan.tree.nodes import MapNode, read_text
from amplifier_app.plan.tree.paths import NoSuchPath, Path, find, parse_path
from amplifier_app.plan.tree.problems import suggest
from amplifier_core.module_sources import PARTS
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import nearest

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
    """

    path: Path
    value: Value | None
    rule: Schema | None


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
        values, missing = values_at(plan, path), None
    except NoSuchPath as error:
        values, missing = [], error
    found = [Explained(value.path, value, schemas.rule(value.path)) for value in values]
    found += _unset(path, values, schemas)
    if missing is not None and not found:
        raise _unknown(path, missing, schemas)
    return found


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
        hint = suggest(missing.segment, missing.known) if missing and missing.known else None
        return f"{missing}; {hint}" if hint else missing and str(missing)
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
        known = [one for one in keys_at(schema, keys[:depth]) if one not in _NOT_MERGED]
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
    return [Explained(one, None, rule) for one in paths if (rule := schemas.rule(one)) is not None]


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
    hint = suggest(segment, known) if known else None
    return ConfigError(str(NoSuchPath(at, segment, known)), hint=hint, is_usage=True)


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
        for tree in (self._plan.tree, self._plan.merged.document):
            try:
                node = find(tree, path)
            except NoSuchPath:
                continue
            if isinstance(node, MapNode):
                return node
        return None
