"""One JSON Schema for plans, profiles, settings and agents, for editors and other programs.

It is printed from the same table that documents are checked against, `grammar`, with the config of
each bundled module. Checks that depend on other files or on the environment are made only when a
plan is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amplifier_app.plan.schema.grammar import AGENT, AGENT_FILE, PLAN, SETTINGS
from amplifier_app.plan.schema.module_schemas import ModuleSchema, bundled_schemas
from amplifier_app.plan.schema.rules import REFERENCE, Rule, Schema
from amplifier_core.module_sources import PARTS

_ANNOTATIONS = ("description", "default", "deprecated")
_NAMED = ("properties", "patternProperties", "$defs", "dependentSchemas")
_DATA = ("default", "const", "enum", "examples", "required")


def embed(schema: Any, place: str) -> Any:
    """A schema with its references adjusted to its place in the plan schema."""
    if isinstance(schema, list):
        return [embed(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: Schema = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            moved[key] = {name: embed(rule, place) for name, rule in value.items()}
        elif key in _DATA:
            moved[key] = value
        elif key not in ("$schema", "$id"):
            moved[key] = embed(value, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def _for_files(schema: Schema) -> Schema:
    """A config schema as it applies to files, which may leave values empty or use `${VARIABLES}`."""
    allowed = _with_references(schema)
    kind = schema.get("type")
    return {**allowed, "type": [*_types(kind), "null"]} if kind is not None else allowed


def _with_references(schema: Any) -> Any:
    """The schema with a string that contains a variable allowed for every value."""
    if not isinstance(schema, dict):
        return schema
    open_to: Schema = dict(schema)
    for key in ("properties", "$defs", "patternProperties"):
        if key in schema:
            members: Schema = schema[key]
            convert = _with_references if key == "$defs" else _or_reference
            open_to[key] = {name: convert(rule) for name, rule in members.items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            open_to[key] = _or_reference(schema[key])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            open_to[key] = [_with_references(rule) for rule in schema[key]]
    return open_to


def _or_reference(schema: Any) -> Any:
    if schema is True or schema == {} or not isinstance(schema, dict):
        return schema
    rule: Schema = _with_references(schema)
    types = _types(rule.get("type"))
    limited = rule.keys() & {"pattern", "minLength", "maxLength", "enum", "const", "format"}
    if "string" in types and not limited:
        return rule
    annotations = {key: rule.pop(key) for key in _ANNOTATIONS if key in rule}
    reference = {"type": "string", "pattern": REFERENCE}
    if types and "string" not in types and not limited:
        # One rule where possible: editors derive their messages from it.
        return {**annotations, **rule, "type": [*types, "string"], "pattern": REFERENCE}
    choices = rule["anyOf"] if rule.keys() == {"anyOf"} else [rule]
    return {**annotations, "anyOf": [*choices, reference]}


def _types(kind: Any) -> list[str]:
    if kind is None:
        return []
    return [kind] if isinstance(kind, str) else list(kind)


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> Schema:
    """The schema of plans and profiles; see `#/$defs/settings` and `#/$defs/agent` for the others.

    Raises:
        ModuleError: A bundled module's schema cannot be read.
    """
    definitions = Definitions(bundled_schemas())
    agent = AGENT_FILE.schema(definitions)
    documents = {
        "plan": _complete(PLAN.schema(definitions)),
        "settings": SETTINGS.schema(definitions),
        "agent": agent,
        "agent_in_list": {**agent, "type": ["object", "string"], "required": ["name"]},
        "agent_by_name": {**AGENT.schema(definitions), "type": ["object", "string", "null"]},
    }

    defs = {**documents, **definitions.found, **definitions.configs()}
    return {"$schema": DIALECT, "title": "Amplifier", "$ref": "#/$defs/plan", "$defs": defs}


class Definitions:
    """The definitions of rules and of the config of modules.

    Args:
        modules: The bundled modules.

    Attributes:
        found: The definitions of the rules that were used, by name.
    """

    def __init__(self, modules: Sequence[ModuleSchema]) -> None:
        self._modules = modules
        self.found: Schema = {}

    def use(self, rule: Rule) -> Schema:
        """The schema of a rule, or a reference to its definition."""
        if rule.name is None:
            return rule.as_schema(self)
        if rule.name not in self.found:
            self.found[rule.name] = {}
            self.found[rule.name] = rule.as_schema(self)
        return {"$ref": f"#/$defs/{rule.name}"}

    def with_modules(self, kind: str, schema: Schema) -> Schema:
        """The schema of a module's entry, with the ids and configs of the bundled modules."""
        own = [module for module in self._modules if module.kind == kind]
        ids = [{"const": declared.module_id, "description": declared.summary} for declared in own]
        fields: Schema = schema["properties"]
        # The last one matches every id; the others are for completion in editors.
        fields = {**fields, "module": {**fields["module"], "anyOf": [*ids, {}]}}
        configs = [_build_config_schema(module) for module in own if module.config is not None]
        return {**schema, "properties": fields, "allOf": configs}

    def configs(self) -> Schema:
        """The definitions of the config of every module."""
        return {
            name: _for_files(embed(module.config, f"#/$defs/{name}"))
            for module in self._modules
            if module.config is not None and (name := _definition(module))
        }


def _complete(plan: Schema) -> Schema:
    """A plan without `extends` must be complete."""
    return {
        **plan,
        "if": {"not": {"required": ["extends"]}},
        "then": {"allOf": [_names(part) for part in PARTS]},
    }


def _names(part: str) -> Schema:
    """Requires the module of a part, in either of its two places."""
    inside = {"properties": {"session": {"required": [part]}}, "required": ["session"]}
    return {"anyOf": [inside, {"required": [part]}]}


def _build_config_schema(module: ModuleSchema) -> Schema:
    # A module with its own source may be a different one of the same name.
    named = {
        "properties": {"module": {"const": module.module_id}, "source": {"type": "null"}},
        "required": ["module"],
    }
    config = {"properties": {"config": {"$ref": f"#/$defs/{_definition(module)}"}}}
    return {"if": named, "then": config}


def _definition(module: ModuleSchema) -> str:
    return f"config_of_{module.module_id}"
