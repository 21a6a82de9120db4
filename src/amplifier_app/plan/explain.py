"""Explain an address of a plan: values, their history, and the description of a key."""

from __future__ import annotations

from typing import NamedTuple

from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.plan.history import Value, dotted, values_at
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.module_schemas import Schema, keys_at, rule_at, schema_of_installed
from amplifier_app.plan.nodes import MapNode, text_of
from amplifier_app.plan.paths import NoSuchPath, Path, find, parse_path
from amplifier_app.plan.problems import suggest


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
        raise ConfigError(str(error)) from None
    schemas = _Schemas(plan)
    try:
        values, missing = values_at(plan, path), None
    except NoSuchPath as error:
        values, missing = [], error
    found = [Explained(one.path, one, schemas.rule(one.path)) for one in values]
    found += _unset(path, values, schemas)
    if missing is not None and not found:
        raise _unknown(path, missing, schemas)
    return found


def _unset(path: Path, values: list[Value], schemas: _Schemas) -> list[Explained]:
    """The unset keys at an address of a config."""
    schema = schemas.of(path)
    if schema is None:
        return []
    depth = _config_depth(path)
    if len(path) == depth:
        named = {one.path[depth] for one in values if len(one.path) > depth}
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
    return ConfigError(str(NoSuchPath(at, segment, known)), hint=hint)


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
        module = text_of(entry.items.get("module")) if entry is not None else None
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
