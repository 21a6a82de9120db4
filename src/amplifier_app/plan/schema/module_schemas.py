"""The configuration schemas of modules: `config_schema()` of a module's package."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base import installed
from amplifier_app.base.errors import ModuleError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.own_packages import MODULE_PACKAGES
from amplifier_app.plan.schema.rules import Schema
from amplifier_core.module_sources import find_kind
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.base.installed import Installed


class ModuleSchema(NamedTuple):
    """A module and its configuration schema.

    Attributes:
        module_id: Its id.
        kind: `"provider"`, `"tool"`, `"hook"`, `"orchestrator"` or `"context"`.
        summary: One line that describes it.
        config: The JSON Schema of its config; None if the module does not provide one.
    """

    module_id: str
    kind: str
    summary: str
    config: Schema | None


def config_schema(package: Any) -> Schema | None:
    """A copy of the JSON Schema of a module's config.

    Args:
        package: The imported package of the module.

    Returns:
        The schema; None if the module has no `config_schema`.

    Raises:
        ModuleError: The module's `config_schema` fails, or returns an invalid schema.
    """
    get_schema = getattr(package, "config_schema", None)
    if not callable(get_schema):
        return None
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        schema = get_schema()
        if not isinstance(schema, dict):
            raise TypeError(f"it returned {type(schema).__name__}, not a mapping")
        # The schemas of bundled modules are valid (tests hold it), and the check costs more than the rest.
        if package.__name__.partition(".")[0] not in MODULE_PACKAGES:
            validator_for(schema).check_schema(schema)
        return copy.deepcopy(cast("Schema", schema))
    except SchemaError as error:
        reason = f"it is not a valid JSON Schema: {error.message}"
    # A module's code may raise anything; the reason is reported.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    raise ModuleError(f"config_schema() of {package.__name__} cannot be used: {reason}")


def bundled_schemas() -> list[ModuleSchema]:
    """The bundled modules, loaded through their entry points.

    Raises:
        ModuleError: One of them cannot be imported or its schema is invalid.
    """
    schemas: list[ModuleSchema] = []
    for module_id, module in sorted(bundled_modules().items()):
        package = _package(module)
        first = (package.__doc__ or "").strip().partition("\n")[0]
        summary = first.removeprefix(f"{module_id}: ")
        schemas.append(
            ModuleSchema(module_id, find_kind(module_id, package), summary, config_schema(package))
        )
    return schemas


def _package(module: Installed) -> Any:
    try:
        return import_module(module.entry_point.partition(":")[0])
    # A module's code may raise anything; the reason is reported.
    except Exception as error:
        raise ModuleError(f"{module.module_id} cannot be imported: {error}") from error


def schema_of_installed(module_id: str) -> Schema | None:
    """The config schema of a bundled or installed module; None if it is neither, or provides no
    schema. Imports its package.

    Raises:
        ModuleError: It cannot be imported, or its schema cannot be used.
    """
    own = installed.bundled_modules().get(module_id)
    points = [own] if own is not None else installed.modules_on_path(module_id)
    return config_schema(_package(points[0])) if points else None


def rule_at(schema: Schema, keys: Sequence[str]) -> Schema | None:
    """The schema's rule for the value at an address; None if it has none."""
    rules = [schema]
    for key in keys:
        rules = [below for rule in _alternatives(schema, rules) if (below := _below(rule, key))]
    first = rules[0] if rules else None
    if first is None or "description" in first or "default" in first:
        return first
    return next(_alternatives(schema, [first]), None)


def keys_at(schema: Schema, keys: Sequence[str]) -> list[str]:
    """The keys allowed at an address."""
    rule = rule_at(schema, keys)
    known: dict[str, None] = {}
    for alternative in _alternatives(schema, [rule] if rule else []):
        known |= dict.fromkeys(current_keys(alternative.get("properties", {})))
    return list(known)


def current_keys(properties: Schema) -> list[str]:
    """The keys that are not deprecated."""
    return [
        key
        for key, rule in properties.items()
        if not (isinstance(rule, dict) and cast("Schema", rule).get("deprecated"))
    ]


def _below(rule: Schema, key: str) -> Schema | None:
    below = rule.get("properties", {}).get(key)
    if below is None:
        below = rule.get("items" if key.isdecimal() else "additionalProperties")
    return cast("Schema", below) if isinstance(below, dict) else None


def _alternatives(
    schema: Schema, rules: Iterable[Schema], seen: tuple[int, ...] = ()
) -> Iterator[Schema]:
    """The rules with references resolved, each alternative on its own."""
    for rule in rules:
        if id(rule) in seen:
            # References may be recursive.
            continue
        inner: list[Schema] = []
        target = rule.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            node: Any = schema
            for step in target.removeprefix("#/").split("/"):
                node = node.get(step, {})
            inner.append(node)
        for word in ("anyOf", "oneOf", "allOf"):
            inner += rule.get(word, ())
        yield from _alternatives(schema, inner, (*seen, id(rule)))
        yield rule
