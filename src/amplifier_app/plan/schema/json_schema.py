"""One JSON Schema for plans, profiles, settings and agents, for editors and other programs.

It is printed from the same table that documents are checked against, `grammar`, with the config of
each bundled module. Checks that depend on other files or on the environment are made only when a
plan is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.plan.schema.grammar import AGENT, AGENT_FILE, PLAN, SETTINGS
from amplifier_app.plan.schema.module_schemas import ModuleSchema, bundled_schemas
from amplifier_app.plan.schema.rules import Rule, Schema
from amplifier_app.plan.schema.schema_parts import embed, for_files
from amplifier_core.discovery import PARTS

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
        ids = [{"const": one.module_id, "description": one.summary} for one in own]
        fields: Schema = schema["properties"]
        # The last one matches every id; the others are for completion in editors.
        fields = {**fields, "module": {**fields["module"], "anyOf": [*ids, {}]}}
        configs = [_config_of(module) for module in own if module.config is not None]
        return {**schema, "properties": fields, "allOf": configs}

    def configs(self) -> Schema:
        """The definitions of the config of every module."""
        return {
            name: for_files(embed(module.config, f"#/$defs/{name}"))
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


def _config_of(module: ModuleSchema) -> Schema:
    # A module with its own source may be a different one of the same name.
    named = {
        "properties": {"module": {"const": module.module_id}, "source": {"type": "null"}},
        "required": ["module"],
    }
    config = {"properties": {"config": {"$ref": f"#/$defs/{_definition(module)}"}}}
    return {"if": named, "then": config}


def _definition(module: ModuleSchema) -> str:
    return f"config_of_{module.module_id}"
