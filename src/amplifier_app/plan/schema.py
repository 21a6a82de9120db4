"""One JSON Schema for plans, profiles, settings and agents, for editors and other programs.

It says what `structure` checks, and for each bundled module what its config may hold. What
depends on other files or on the environment only loading a plan can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from amplifier_app.plan.module_schemas import ModuleSchema, Schema, bundled_schemas
from amplifier_app.plan.modules import KINDS
from amplifier_app.plan.schema_parts import REFERENCE, embedded, for_files
from amplifier_app.plan.shapes import DISPLAY, ENTRY_SECTIONS, PARTS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_VARIABLE_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


def plan_schema() -> Schema:
    """The schema of plans and profiles; `#/$defs/settings` and `#/$defs/agent` are the others'.

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
        **{f"{kind}_entry": _entry(kind, modules) for kind in KINDS.values()},
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
            "A mount plan or profile: what an agent is made of.",
            {
                "name": _text("What the plan goes by; by default the name of its file."),
                "description": _text("What it is for, in a line."),
                "extends": _text(
                    "A profile by its name, or './FILE': this document stands on that one.",
                    examples=["default"],
                ),
                "exclude": _texts(
                    "Modules to leave out of what is extended, by module id or instance id."
                ),
                **_contents(),
                "agents": {"$ref": "#/$defs/agents"},
            },
        ),
        # What extends nothing has to be whole.
        "if": {"not": {"required": ["extends"]}},
        "then": {"allOf": [_names(part) for part in PARTS]},
    }


def _settings() -> Schema:
    return _document(
        "Settings: a part of a plan that is laid over profiles.",
        {
            "profile": _text("The profile that runs when no other is named."),
            "sources": {
                **_object(
                    "Where modules come from, whatever the plan says: module id → source.",
                    {},
                    values={"$ref": "#/$defs/source"},
                ),
                "propertyNames": {"pattern": _ID},
            },
            "display": _object(
                "What is shown, and how: `amplifier run --show` and `--screen`.",
                {
                    key: {"description": f"The default of `--{key}`.", "enum": list(values)}
                    for key, values in DISPLAY.items()
                },
            ),
            "exclude": _texts("Modules to leave out of the profile."),
            **_contents(),
            "agents": {"$ref": "#/$defs/agents"},
        },
    )


def _agent() -> Schema:
    return _document(
        "An agent that work may be handed to: what differs from the plan it is in.",
        {
            "description": _text("What it is for; the model chooses by this."),
            "exclude": _texts("Modules of the plan that it does without."),
            **_contents(),
        },
    )


def _agent_with_name() -> Schema:
    agent = _agent()
    name = _text("What it goes by; by default the name of its file.")
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
            "dirs": {"description": "Folders with files of agents.", **names},
            "include": {"description": "Agents to take from them, by name.", **names},
            "active": {"description": "The same as `include`.", **names},
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
        "description": "Agents that work may be handed to: a list of names, files "
        "('./agents/*.md') and agents, or agents by name; 'all' or 'none'.",
        "pattern": "^(all|none)$",
        "items": {"$ref": "#/$defs/agent_in_list"},
        "if": {"anyOf": [*lists, {"required": ["inline"], "maxProperties": 1}]},
        "then": published,
        "else": by_name,
    }


def _document(description: str, properties: Schema) -> Schema:
    # Keys that start with `x-` are the writer's own, for anchors and for other programs.
    own = {"^x-": {"description": "Whatever you like; Amplifier does not look at it."}}
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
    """That a document names the module of a part, in one place or the other."""
    inside = {"properties": {"session": {"required": [part]}}, "required": ["session"]}
    return {"anyOf": [inside, {"required": [part]}]}


def _session() -> Schema:
    limit = {
        "type": ["integer", "string", "null"],
        "minimum": 0,
        "pattern": REFERENCE,
    }
    return _object(
        "How a conversation is run and kept.",
        {
            "orchestrator": {"$ref": "#/$defs/orchestrator"},
            "context": {"$ref": "#/$defs/context"},
            "orchestrator_source": {"$ref": "#/$defs/source"},
            "context_source": {"$ref": "#/$defs/source"},
            "budget": _budget(),
            "fallbacks": _texts(
                "Providers to ask, in this order, while the one that is asked first cannot be "
                "reached or is overloaded."
            ),
            "injection_budget_per_turn": {
                **limit,
                "description": "Tokens hooks may add to the conversation in a turn.",
            },
            "injection_size_limit": {
                **limit,
                "description": "Bytes one addition of a hook may have.",
            },
            "mount_timeout": {
                "type": ["number", "string", "null"],
                "exclusiveMinimum": 0,
                "pattern": REFERENCE,
                "default": 120,
                "description": "Seconds each module may take to be imported, and again to be "
                "mounted; null for no limit.",
            },
            "metadata": {"description": "Data for modules and programs; not looked at."},
            "raw": {"description": "Whether events carry requests and answers unabridged."},
            "debug": {"description": "Whether modules tell more than usual."},
        },
    )


def _budget() -> Schema:
    whole: Schema = {"type": ["integer", "string", "null"], "exclusiveMinimum": 0}
    fraction: Schema = {"type": ["number", "string", "null"], "exclusiveMinimum": 0}
    limits = {
        "max_turns": (whole, "Model calls."),
        "max_tool_calls": (whole, "Tool calls."),
        "max_tokens": (whole, "Tokens of all model calls, what goes in and what comes out."),
        "max_cost": (fraction, "US dollars; a model whose price is not known ends the session."),
        "max_seconds": (fraction, "Seconds that turns take."),
    }
    return _object(
        "What the session may use, sub-agents included, over all its turns; exit code 7 at a limit.",
        {
            name: {**rule, "pattern": REFERENCE, "description": text}
            for name, (rule, text) in limits.items()
        },
    )


# -- modules -----------------------------------------------------------------------------


def _part(kind: str, modules: Sequence[ModuleSchema]) -> Schema:
    what = {
        "orchestrator": "The loop that calls the model and its tools.",
        "context": "What keeps the conversation and makes it fit the model.",
    }[kind]
    return _module_or_id(what, kind, modules, required=False)


def _section(section: str) -> Schema:
    what = {
        "providers": "Services models are asked at; the one of lowest priority comes first.",
        "tools": "What the model may do.",
        "hooks": "What watches a session, and may step in.",
    }[section]
    kind = KINDS[section]
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
            "description": "Its name here, where one module is mounted more than once.",
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
    """A module as a mapping or as its id alone, with the config of the bundled ones.

    One rule for both, since most keywords say something about one type only: an editor can then
    say what is wrong, where of alternatives it only knows that none fits.
    """
    own = [module for module in modules if module.kind == kind]
    module_id = {
        "type": "string",
        "pattern": _ID,
        "description": "Id of the module.",
        # The last one fits every id; the others are what an editor offers.
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
    # A module with a source of its own may be another one of the same name.
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
            "When the provider is used; without it, always.",
            {
                "env": {
                    "description": "Environment variables of which one has to be set.",
                    **name,
                    "type": ["string", "array"],
                    "items": name,
                },
                "no_other": {
                    "type": "boolean",
                    "description": "Only if no other provider of the plan is left.",
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
    "Where the module is: './FOLDER', 'git+https://HOST/REPO@REF#subdirectory=FOLDER', or the "
    "name of a package. Without it the module is a bundled or an installed one.",
    examples=["./my-tool", "git+https://example.com/me/my-tool@v1.2.0"],
)

_REQUIRES: Schema = {
    **_texts(
        "Requirements to add to those of the module: 'PACKAGE<2' bounds or adds a package, "
        "'PACKAGE @ git+https://HOST/REPO@REF' takes one from a repository."
    ),
    "examples": [["mcp<2"]],
}
