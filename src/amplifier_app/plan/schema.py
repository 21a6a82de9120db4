"""One JSON Schema for plans, profiles, settings and agents, for editors and other programs.

It covers the checks of `structure` and the config of each bundled module. Checks that depend on other
files or on the environment are made only when a plan is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from amplifier_app.plan.module_schemas import ModuleSchema, Schema, bundled_schemas
from amplifier_app.plan.schema_parts import REFERENCE, embedded, for_files
from amplifier_app.plan.shapes import DISPLAY, ENTRY_SECTIONS, PARTS, SECTION_KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_VARIABLE_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


def plan_schema() -> Schema:
    """The schema of plans and profiles; see `#/$defs/settings` and `#/$defs/agent` for the others.

    Raises:
        ModuleError: A bundled module's schema cannot be read.
    """
    modules = bundled_schemas()
    defs: Schema = {
        "plan": _plan(),
        "settings": _settings(),
        "agent": _agent_with_name(),
        "agent_in_list": {
            **_agent_with_name(),
            "type": ["object", "string"],
            "required": ["name"],
        },
        "agent_by_name": {**_agent(), "type": ["object", "string", "null"]},
        "agents": _agents(),
        "session": _session(),
        "when": _when(),
        "source": _SOURCE,
        **{part: _part(part, modules) for part in PARTS},
        **{section: _section(section) for section in ENTRY_SECTIONS},
        **{f"{kind}_entry": _entry(kind, modules) for kind in SECTION_KINDS.values()},
    }
    for module in modules:
        if module.config is not None:
            name = _definition(module)
            defs[name] = for_files(embedded(module.config, f"#/$defs/{name}"))
    return {"$schema": DIALECT, "title": "Amplifier", "$ref": "#/$defs/plan", "$defs": defs}


# -- documents ---------------------------------------------------------------------------


def _plan() -> Schema:
    return {
        **_document(
            "A plan or profile: the modules and settings of an agent.",
            {
                "name": _text("Name of the plan. Default: the name of its file."),
                "description": _text("One line that describes it."),
                "extends": _text(
                    "The profile, by name, or './FILE' that this document is based on.",
                    examples=["default"],
                ),
                "exclude": _texts(
                    "Modules to remove from the extended document, by module id or instance id."
                ),
                **_contents(),
                "agents": {"$ref": "#/$defs/agents"},
            },
        ),
        # A document without `extends` must be complete.
        "if": {"not": {"required": ["extends"]}},
        "then": {"allOf": [_names(part) for part in PARTS]},
    }


def _settings() -> Schema:
    return _document(
        "Settings: a partial plan that is applied to profiles.",
        {
            "profile": _text("The default profile."),
            "sources": {
                **_object(
                    "Sources of modules, by module id; they override the plan's.",
                    {},
                    values={"$ref": "#/$defs/source"},
                ),
                "propertyNames": {"pattern": _ID},
            },
            "display": _object(
                "Defaults of `amplifier run --show` and `--screen`.",
                {
                    key: {"description": f"Default of `--{key}`.", "enum": list(values)}
                    for key, values in DISPLAY.items()
                },
            ),
            "exclude": _texts("Modules to remove from the profile."),
            **_contents(),
            "agents": {"$ref": "#/$defs/agents"},
        },
    )


def _agent() -> Schema:
    return _document(
        "An agent that tasks can be delegated to; a set of changes to the plan it is in.",
        {
            "description": _text("What it is for; the model selects agents by this."),
            "exclude": _texts("Modules of the plan to remove for this agent."),
            **_contents(),
        },
    )


def _agent_with_name() -> Schema:
    agent = _agent()
    name = _text("Name of the agent. Default: the name of its file.")
    return {**agent, "properties": {"name": name, **agent["properties"]}}


def _agents() -> Schema:
    """A list of agents, agents by name, or the published form that lists names and folders."""
    names = {"type": ["string", "array"], "items": {"type": "string"}}
    by_name: Schema = {
        "propertyNames": {"pattern": _ID},
        "additionalProperties": {"$ref": "#/$defs/agent_by_name"},
    }
    published: Schema = {
        "properties": {
            "dirs": {"description": "Folders with agent files.", **names},
            "include": {"description": "Agents to use from these folders, by name.", **names},
            "active": {"description": "Same as `include`.", **names},
            "inline": {"description": "Agents by name.", "type": "object", **by_name},
        },
        "additionalProperties": False,
    }
    lists = [
        {"required": [key], "properties": {key: {"not": {"type": "object"}}}}
        for key in ("dirs", "include", "active")
    ]
    return {
        "type": ["array", "object", "string", "null"],
        "description": "Agents that tasks can be delegated to: a list of names, files "
        "('./agents/*.md') and agents, or a mapping of agents by name; 'all' or 'none'.",
        "pattern": "^(all|none)$",
        "items": {"$ref": "#/$defs/agent_in_list"},
        "if": {"anyOf": [*lists, {"required": ["inline"], "maxProperties": 1}]},
        "then": published,
        "else": by_name,
    }


def _document(description: str, properties: Schema) -> Schema:
    # Keys that start with `x-` are for the author's own use: anchors, other programs.
    own = {"^x-": {"description": "For your own use; ignored by Amplifier."}}
    return {**_object(description, properties), "type": "object", "patternProperties": own}


def _contents() -> Schema:
    return {
        "instruction": _text("The system prompt."),
        "session": {"$ref": "#/$defs/session"},
        "orchestrator": {"$ref": "#/$defs/orchestrator"},
        "context": {"$ref": "#/$defs/context"},
        "fallbacks": _texts("Short for `session.fallbacks`."),
        **{section: {"$ref": f"#/$defs/{section}"} for section in ENTRY_SECTIONS},
    }


def _names(part: str) -> Schema:
    """Requires the module of a part, in either of its two places."""
    inside = {"properties": {"session": {"required": [part]}}, "required": ["session"]}
    return {"anyOf": [inside, {"required": [part]}]}


def _session() -> Schema:
    limit = {
        "type": ["integer", "string", "null"],
        "minimum": 0,
        "pattern": REFERENCE,
    }
    return _object(
        "How a conversation runs, and its limits.",
        {
            "orchestrator": {"$ref": "#/$defs/orchestrator"},
            "context": {"$ref": "#/$defs/context"},
            "orchestrator_source": {"$ref": "#/$defs/source"},
            "context_source": {"$ref": "#/$defs/source"},
            "budget": _budget(),
            "fallbacks": _texts(
                "Providers to try, in this order, while the first one is unreachable or overloaded."
            ),
            "injection_budget_per_turn": {
                **limit,
                "description": "Maximum number of tokens that hooks may add in a turn.",
            },
            "injection_size_limit": {
                **limit,
                "description": "Maximum size of one addition by a hook, in bytes.",
            },
            "mount_timeout": {
                "type": ["number", "string", "null"],
                "exclusiveMinimum": 0,
                "pattern": REFERENCE,
                "default": 120,
                "description": "Time limit for importing, and again for mounting, each module, in "
                "seconds; null for no limit.",
            },
            "metadata": {"description": "Data for modules and other programs; not interpreted."},
            "raw": {"description": "Whether events contain complete requests and responses."},
            "debug": {"description": "Whether modules emit debug information."},
        },
    )


def _budget() -> Schema:
    whole: Schema = {"type": ["integer", "string", "null"], "exclusiveMinimum": 0}
    fraction: Schema = {"type": ["number", "string", "null"], "exclusiveMinimum": 0}
    limits = {
        "max_turns": (whole, "Model calls."),
        "max_tool_calls": (whole, "Tool calls."),
        "max_tokens": (whole, "Input and output tokens of all model calls."),
        "max_cost": (fraction, "US dollars; a model without a known price ends the session."),
        "max_seconds": (fraction, "Running time of all turns, in seconds."),
    }
    return _object(
        "Limits of the session over all turns, including sub-agents; exit code 7 at a limit.",
        {
            name: {**rule, "pattern": REFERENCE, "description": text}
            for name, (rule, text) in limits.items()
        },
    )


# -- modules -----------------------------------------------------------------------------


def _part(kind: str, modules: Sequence[ModuleSchema]) -> Schema:
    what = {
        "orchestrator": "The loop that calls the model and the tools.",
        "context": "Stores the conversation and fits it into the model's context window.",
    }[kind]
    return _module_or_id(what, kind, modules, required=False)


def _section(section: str) -> Schema:
    what = {
        "providers": "Model services; the one with the lowest priority is used first.",
        "tools": "Tools the model can call.",
        "hooks": "Observe a session's events and can change, deny or add to them.",
    }[section]
    kind = SECTION_KINDS[section]
    return {
        "type": ["array", "null"],
        "description": what,
        "items": {"$ref": f"#/$defs/{kind}_entry"},
    }


def _entry(kind: str, modules: Sequence[ModuleSchema]) -> Schema:
    more: Schema = {
        "instance_id": {
            "type": "string",
            "pattern": _ID,
            "description": "A unique name, if the module is mounted more than once.",
        }
    }
    if kind == "provider":
        more["when"] = {"$ref": "#/$defs/when"}
    return _module_or_id(f"A {kind}.", kind, modules, more, required=True)


def _module_or_id(
    description: str,
    kind: str,
    modules: Sequence[ModuleSchema],
    more: Schema | None = None,
    *,
    required: bool,
) -> Schema:
    """A module as a mapping or as its id alone, with the config schemas of bundled modules.

    One rule for both, since most keywords apply to one type only: with alternatives, an editor could
    report only that none of them matches.
    """
    own = [module for module in modules if module.kind == kind]
    module_id = {
        "type": "string",
        "pattern": _ID,
        "description": "Id of the module.",
        # The last one matches every id; the others are for completion in editors.
        "anyOf": [*({"const": one.module_id, "description": one.summary} for one in own), {}],
    }
    fields: Schema = {
        "module": module_id,
        "source": {"$ref": "#/$defs/source"},
        "requires": _REQUIRES,
        "config": {"type": ["object", "null"], "description": "Settings of the module."},
        **(more or {}),
    }
    return {
        **_object(description, fields, required=["module"] if required else []),
        "type": ["string", "object"] if required else ["string", "object", "null"],
        "pattern": _ID,
        "allOf": [_config_of(module) for module in own if module.config is not None],
    }


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


def _when() -> Schema:
    name = {"type": "string", "pattern": _VARIABLE_NAME}
    return {
        **_object(
            "Condition for using the provider. Default: always.",
            {
                "env": {
                    "description": "Environment variables, at least one of which must be set.",
                    **name,
                    "type": ["string", "array"],
                    "items": name,
                },
                "no_other": {
                    "type": "boolean",
                    "description": "Only if no other provider of the plan is available.",
                },
            },
        ),
        "minProperties": 1,
    }


# -- pieces ------------------------------------------------------------------------------


def _object(
    description: str,
    properties: Schema,
    *,
    required: Iterable[str] = (),
    values: Schema | bool = False,
) -> Schema:
    schema: Schema = {
        "type": ["object", "null"],
        "description": description,
        "properties": properties,
        "additionalProperties": values,
    }
    if needed := list(required):
        schema["required"] = needed
    return schema


def _text(description: str, **more: Any) -> Schema:
    return {"type": ["string", "null"], "pattern": r"\S", "description": description, **more}


def _texts(description: str) -> Schema:
    return {
        "type": ["string", "array", "null"],
        "description": description,
        "items": {"type": "string"},
    }


_SOURCE: Schema = _text(
    "Source of the module: './FOLDER', 'git+https://HOST/REPO@REF#subdirectory=FOLDER', or a "
    "package name. Default: the bundled or installed module.",
    examples=["./my-tool", "git+https://example.com/me/my-tool@v1.2.0"],
)

_REQUIRES: Schema = {
    **_texts(
        "Additional requirements of the module: 'PACKAGE<2' constrains or adds a package, "
        "'PACKAGE @ git+https://HOST/REPO@REF' installs one from a repository."
    ),
    "examples": [["mcp<2"]],
}
