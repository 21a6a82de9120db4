"""Check a module's config in a plan against the module's schema, with a line for each problem.

Messages never quote a value: it may be a secret.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jsonschema.validators import validator_for
from referencing import Registry

from amplifier_app.base import installed
from amplifier_app.base.errors import Location, ModuleError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.own_packages import MODULE_PACKAGES
from amplifier_app.plan.schema.rules import Schema
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, plain_data
from amplifier_app.plan.tree.problems import Problem, suggest
from amplifier_app.plan.tree.yaml_reader import plain_scalar
from amplifier_core.discovery import kind_of

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
        # Those of bundled modules are valid (tests hold it), and the check costs more than the rest.
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
    found: list[ModuleSchema] = []
    for module_id, module in sorted(bundled_modules().items()):
        package = _package(module)
        first = (package.__doc__ or "").strip().partition("\n")[0]
        summary = first.removeprefix(f"{module_id}: ")
        found.append(
            ModuleSchema(module_id, kind_of(module_id, package), summary, config_schema(package))
        )
    return found


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
        rules = [one for rule in _alternatives(schema, rules) if (one := _below(rule, key))]
    found = rules[0] if rules else None
    if found is None or "description" in found or "default" in found:
        return found
    return next(_alternatives(schema, [found]), None)


def keys_at(schema: Schema, keys: Sequence[str]) -> list[str]:
    """The keys allowed at an address."""
    rule = rule_at(schema, keys)
    known: dict[str, None] = {}
    for one in _alternatives(schema, [rule] if rule else []):
        known |= dict.fromkeys(current_keys(one.get("properties", {})))
    return list(known)


def current_keys(properties: Schema) -> list[str]:
    """The keys that are not deprecated."""
    return [
        key
        for key, rule in properties.items()
        if not (isinstance(rule, dict) and cast("Schema", rule).get("deprecated"))
    ]


def _below(rule: Schema, key: str) -> Schema | None:
    found = rule.get("properties", {}).get(key)
    if found is None:
        found = rule.get("items" if key.isdecimal() else "additionalProperties")
    return cast("Schema", found) if isinstance(found, dict) else None


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
            found: Any = schema
            for step in target.removeprefix("#/").split("/"):
                found = found.get(step, {})
            inner.append(found)
        for word in ("anyOf", "oneOf", "allOf"):
            inner += rule.get(word, ())
        yield from _alternatives(schema, inner, (*seen, id(rule)))
        yield rule


_TYPES = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "empty",
}
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters long",
    "maxLength": "at most {} characters long",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "multipleOf": "a multiple of {}",
    "const": "{}",
}


def config_problems(
    entry: MapNode, module_id: str, schema: Schema, *, partial: bool = False
) -> list[Problem]:
    """The problems in the config of one module.

    A string that parses as the expected number or boolean is accepted: variables are strings.

    Args:
        entry: The module's entry in the plan.
        module_id: Its id.
        schema: The JSON Schema of its config.
        partial: Whether the entry only changes another one, which may have the required keys.
    """
    config = entry.items.get("config")
    node = config if isinstance(config, MapNode) else MapNode({}, entry.at)
    # An empty registry, so that checking a config never fetches anything.
    validator: Any = validator_for(schema)(schema, registry=Registry())
    problems: list[Problem] = []
    for error in validator.iter_errors(plain_data(node)):
        if partial and error.validator == "required":
            continue
        problems += _problems_of(error, node, module_id, validator)
    return list(dict.fromkeys(problems))


def ignored_keys(entry: MapNode, module_id: str, schema: Schema) -> list[str]:
    """Warnings about keys without effect in the config of one module.

    The schema gives the reason as `x-ignored` of the key.
    """
    config = entry.items.get("config")
    if not isinstance(config, MapNode):
        return []
    rules: Schema = schema.get("properties", {})
    given = [(key, rules.get(key)) for key, value in plain_data(config).items() if value]
    return [
        f"{config.key_at(key)}: {key!r} of {module_id} has no effect: {rule['x-ignored']}"
        for key, rule in given
        if isinstance(rule, dict) and "x-ignored" in rule
    ]


def _problems_of(error: Any, config: MapNode, module_id: str, validator: Any) -> Iterator[Problem]:
    if _parses_as_expected(error, validator):
        return
    if error.context and (specific := _of_one_alternative(error)):
        for one in specific:
            yield from _problems_of(one, config, module_id, validator)
        return
    path = list(error.absolute_path)
    node = _at(config, path)
    if isinstance(node, Scalar) and node.unset:
        return
    where = f"'{_dotted(path)}' of {module_id}" if path else f"the config of {module_id}"
    if error.validator == "additionalProperties" and isinstance(node, MapNode):
        known: Schema = error.schema.get("properties", {})
        patterns = error.schema.get("patternProperties", {})
        for key in node.items:
            if key not in known and not any(re.search(one, key) for one in patterns):
                message = f"unknown key {key!r} in {where}"
                yield Problem(message, node.key_at(key), suggest(key, current_keys(known)))
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                yield Problem(f"{where} is missing {key!r}", node.at, f"add '{key}: …'")
    else:
        reason = _reason(error.schema)
        message = f"{where} {'is not supported' if reason else _expected(error)}"
        yield Problem(message, _place(config, path), reason)


def _reason(schema: Schema) -> str | None:
    """The description of a key that is refused because it was removed."""
    described = str(schema.get("description") or "").rstrip(".")
    refused = schema.get("deprecated") and "enum" in schema
    return described[:1].lower() + described[1:] if refused and described else None


def _parses_as_expected(error: Any, validator: Any) -> bool:
    if not isinstance(error.instance, str):
        return False
    value = plain_scalar(error.instance)
    return not isinstance(value, str) and validator.evolve(schema=error.schema).is_valid(value)


def _of_one_alternative(error: Any) -> list[Any]:
    """The errors of the alternative whose type matches the value."""
    by_alternative: dict[Any, list[Any]] = {}
    for one in error.context:
        by_alternative.setdefault(one.relative_schema_path[0], []).append(one)
    fitting = [
        errors
        for errors in by_alternative.values()
        if not any(one.validator in ("type", "enum", "const") for one in errors if not one.path)
    ]
    return min(fitting, key=len) if fitting else []


def _expected(error: Any) -> str:
    if error.validator in ("type", "enum", "anyOf", "oneOf"):
        return f"must be {_either(list(dict.fromkeys(_accepted(error.schema))))}"
    limit = json.dumps(error.validator_value, ensure_ascii=False)
    if error.validator in _LIMITS:
        return f"must be {_LIMITS[error.validator].format(limit)}"
    return f"is invalid: {error.validator} {limit if len(limit) < 80 else '…'}"


def _accepted(schema: Schema) -> Iterator[str]:
    """What a schema accepts, each type in a few words."""
    for word in ("anyOf", "oneOf"):
        for one in schema.get(word, ()):
            yield from _accepted(one)
    if "$ref" in schema:
        yield _TYPES["object"]
    elif "enum" in schema or "const" in schema:
        yield from map(json.dumps, schema.get("enum") or [schema["const"]])
    elif "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        yield from (_TYPES.get(kind, kind) for kind in kinds)


def _either(accepted: Sequence[str]) -> str:
    words = [one for one in accepted if one != _TYPES["null"]] or list(accepted)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _at(config: MapNode, path: Iterable[str | int]) -> Node:
    node: Node = config
    for step in path:
        if isinstance(node, MapNode):
            node = node.items[str(step)]
        elif isinstance(node, ListNode):
            node = node.items[int(step)]
    return node


def _place(config: MapNode, path: list[str | int]) -> Location:
    """Where to report a problem: at the key, or at the entry of a list."""
    if not path:
        return config.at
    parent = _at(config, path[:-1])
    if isinstance(parent, MapNode):
        return parent.key_at(str(path[-1]))
    return _at(config, path).at


def _dotted(path: Iterable[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
