"""The grammar of plans, settings and agents: every key, with the rule of its value.

`structure` checks documents against it, and `schema` prints it as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from amplifier_app.plan.schema.list_rules import Commands, Preferences, Rules
from amplifier_app.plan.schema.module_rules import Module, Modules
from amplifier_app.plan.schema.rules import (
    Anything,
    ByName,
    Choice,
    Config,
    Fields,
    Flag,
    Id,
    Number,
    Rule,
    Text,
    Texts,
    VariableNames,
)
from amplifier_app.plan.schema.sandbox_rule import SandboxRule
from amplifier_app.plan.schema.structure import Agents, Shape
from amplifier_core.discovery import SECTION_KINDS

# -- modules -----------------------------------------------------------------------------

_SOURCE = Text(
    "Source of the module: './FOLDER', 'git+https://HOST/REPO@REF#subdirectory=FOLDER', or a "
    "package name. Default: the bundled or installed module.",
    name="source",
    examples=["./my-tool", "git+https://example.com/me/my-tool@v1.2.0"],
)
_MODULE: Mapping[str, Rule] = {
    "module": Id("Id of the module."),
    "source": _SOURCE,
    "requires": Texts(
        "Additional requirements of the module: 'PACKAGE<2' constrains or adds a package, "
        "'PACKAGE @ git+https://HOST/REPO@REF' installs one from a repository.",
        examples=[["mcp<2"]],
    ),
    "config": Config("Settings of the module."),
}
_ENTRY: Mapping[str, Rule] = {
    **_MODULE,
    "instance_id": Id("A unique name, if the module is mounted more than once."),
}
_WHEN = Fields(
    "Condition for using the provider. Default: always.",
    "'{env: VARIABLE}' or '{no_other: true}'",
    {
        "env": VariableNames(
            "Environment variables, at least one of which must be set.", empty="refused"
        ),
        "no_other": Flag("Only if no other provider of the plan is available.", empty="refused"),
    },
    filled=True,
    # Removes an inherited condition.
    empty="kept",
    name="when",
)
_PARTS: Mapping[str, Rule] = {
    part: Module(part, description, _MODULE, required=False)
    for part, description in {
        "orchestrator": "The loop that calls the model and the tools.",
        "context": "Stores the conversation and fits it into the model's context window.",
    }.items()
}
_SECTIONS: Mapping[str, Rule] = {
    section: Modules(
        section,
        description,
        Module(
            kind,
            f"A {kind}.",
            {**_ENTRY, "when": _WHEN} if kind == "provider" else _ENTRY,
            required=True,
        ),
    )
    for (section, kind), description in zip(
        SECTION_KINDS.items(),
        (
            "Model services; the one with the lowest priority is used first.",
            "Tools the model can call.",
            "Observe a session's events and can change, deny or add to them.",
        ),
        strict=True,
    )
}

# -- session -----------------------------------------------------------------------------

_BUDGET = Fields(
    "Limits of the session over all prompts, including sub-agents; exit code 7 at a limit.",
    "a mapping such as '{max_cost: 5}'",
    {
        "max_steps": Number("Model calls."),
        "max_tool_calls": Number("Tool calls."),
        "max_tokens": Number("Input and output tokens of all model calls."),
        "max_cost": Number(
            "US dollars; a model without a known price ends the session.", whole=False
        ),
        "max_seconds": Number("Running time of all prompts, in seconds.", whole=False),
    },
    # Removes an inherited budget.
    empty="kept",
    older=MappingProxyType({"max_turns": "max_steps"}),
)
_SESSION = Fields(
    "How a conversation runs, and its limits.",
    "a mapping with 'orchestrator' and 'context'",
    {
        **_PARTS,
        "orchestrator_source": _SOURCE,
        "context_source": _SOURCE,
        "budget": _BUDGET,
        "sandbox": SandboxRule(
            "What the commands may do that the agent starts. Default: workspace.",
            name="sandbox",
            examples=["workspace", {"write": [".", "build"], "network": "none"}],
        ),
        "fallbacks": Texts(
            "Providers to try, in this order, while the first one is unreachable or overloaded.",
            empty="kept",
        ),
        "injection_budget_per_turn": Number(
            "Maximum number of tokens that hooks may add for one prompt.", zero=True
        ),
        "injection_size_limit": Number(
            "Maximum size of one addition by a hook, in bytes.", zero=True
        ),
        "mount_timeout": Number(
            "Time limit for importing, and again for mounting, each module, in seconds; null for "
            "no limit.",
            whole=False,
            default=120,
        ),
        "metadata": Anything("Data for modules and other programs; not interpreted.", empty="kept"),
        "raw": Anything("Whether events contain complete requests and responses.", empty="kept"),
        "debug": Anything("Whether modules emit debug information.", empty="kept"),
    },
    open=True,
    name="session",
)

_CHECKS = Commands(
    "Shell commands that must succeed after the answer of `amplifier run`; the model gets the output "
    "of those that fail and may correct its work. Exit code 9 if one still fails.",
    "a list of commands",
    Fields(
        "One check.",
        "a command, or a mapping with 'run'",
        {
            "run": Text("The shell command."),
            "name": Text("Its name in reports. Default: the command."),
            "timeout": Number("Time limit in seconds.", whole=False, default=600),
        },
    ),
    examples=[["pytest -q", {"run": "ruff check", "name": "lint", "timeout": 60}]],
)

_APPROVALS = Rules(
    "Rules for tool calls, the first match decides; those of a document come before those of the "
    "documents it extends. Applied by hooks-approval.",
    Fields(
        "A rule: it matches a call if all of its patterns do.",
        "a mapping such as '{action: allow, tool: bash, command: pytest *}'",
        {
            "action": Choice(
                "What to do with the call; 'sandboxed' allows commands that the sandbox restricts.",
                ("allow", "ask", "deny", "sandboxed"),
            ),
            "tool": Texts("Shell patterns for the name of the tool. Default: every tool."),
            "path": Texts("Patterns for the paths that the call names, such as 'src/**'."),
            "command": Texts("Patterns for the shell command, word by word, such as 'git log *'."),
            "reason": Text(
                "Shown to the model if the call is denied, and to the user when asking."
            ),
        },
    ),
    examples=[[{"action": "allow", "tool": "bash", "command": "pytest *"}]],
)

_NAMESPACES = ByName(
    "Folders that tools and hooks can read as '@NAME:path', by name. A bundle adds its own folder and "
    "those of the bundles it includes.",
    "a mapping 'NAME: SOURCE'",
    "a name",
    Texts("Source of the folder, or a list of sources that are searched in this order."),
)

# -- documents ---------------------------------------------------------------------------

_CONTENTS: Mapping[str, Rule] = {
    "instruction": Text("The system prompt."),
    "session": _SESSION,
    **_PARTS,
    "fallbacks": Texts("Short for `session.fallbacks`."),
    **_SECTIONS,
    "approvals": _APPROVALS,
}

_PREFERENCES = Preferences(
    "Providers and models of the plan, of which the agent uses the first that is available.",
    "a list of mappings such as '{provider: anthropic, model: claude-haiku-*}'",
    Fields(
        "A provider and its model.",
        "a mapping such as '{provider: anthropic, model: claude-haiku-*}'",
        {
            "provider": Text("The provider, by its name in the plan."),
            "model": Text("The model, or a pattern. Default: the provider's."),
            "config": Anything("Not used."),
        },
        open=True,
    ),
)

AGENT = Shape(
    "the agent",
    "An agent that tasks can be delegated to; a set of changes to the plan it is in.",
    {
        "description": Text("What it is for; the model selects agents by this."),
        "exclude": Texts("Modules of the plan to remove for this agent."),
        "provider_preferences": _PREFERENCES,
        "model_role": Texts(
            "What kind of model it needs; a module such as the published hooks-routing chooses by it."
        ),
        **_CONTENTS,
    },
    elsewhere=MappingProxyType({"agents": "agents cannot have agents of their own"}),
)
AGENT_FILE = AGENT._replace(
    keys={"name": Text("Name of the agent. Default: the name of its file."), **AGENT.keys},
    start="start with 'description:'",
    tables=("meta", "agent"),
)
_AGENTS = Agents(
    "Agents that tasks can be delegated to: a list of names, files ('./agents/*.md') and agents, "
    "or a mapping of agents by name; 'all' or 'none'.",
    AGENT,
)

PLAN = Shape(
    "the plan",
    "A plan or profile: the modules and settings of an agent.",
    {
        "name": Text("Name of the plan. Default: the name of its file."),
        "description": Text("One line that describes it."),
        "extends": Text(
            "The profile, by name, or './FILE' that this document is based on.",
            examples=["default"],
        ),
        "exclude": Texts(
            "Modules to remove from the extended document, by module id or instance id."
        ),
        **_CONTENTS,
        "prompt": Text(
            "The prompt of each row of `amplifier batch`; `{{field}}` is replaced by a field of the row.",
            examples=["Review {{repo}}."],
        ),
        "checks": _CHECKS,
        "agents": _AGENTS,
        "namespaces": _NAMESPACES,
    },
    "start with 'session:' or 'extends: default'",
    MappingProxyType(
        {
            "profile": "set it in settings; a plan uses 'extends: NAME'",
            "sources": "set it in settings; in a plan, set 'source:' of the module",
            "bundle": "a bundle is declared with 'bundle: {name: NAME}'",
            "includes": "only bundles have it: add 'bundle: {name: NAME}', or use 'extends: NAME'",
        }
    ),
    tables=("profile", "bundle"),
)

SETTINGS = Shape(
    "the settings file",
    "Settings: a partial plan that is applied to profiles.",
    {
        "profile": Text("The default profile."),
        "sources": ByName(
            "Sources of modules, by module id; they override the plan's.",
            "a mapping 'MODULE: SOURCE'",
            "a module id",
            # An empty one removes that of a wider scope.
            Text(
                "Source of the module; null for the plan's own.",
                empty="kept",
                examples=["./my-tool"],
            ),
        ),
        "display": Fields(
            "Defaults of `amplifier run --show`, `--screen` and `--plain`, the keys of the chat, and signals.",
            "a mapping of show, screen, keys, signals",
            {
                "show": Choice("Default of `--show`.", ("user", "developer", "internal")),
                "screen": Choice(
                    "What runs draw on a terminal; `plain` is that of `--plain`.",
                    ("full", "plain", "answer"),
                ),
                "keys": Choice("Keys of the chat's input line.", ("emacs", "vi")),
                "signals": Choice(
                    "Window title, links to files, and a bell after long prompts.", ("all", "none")
                ),
            },
        ),
        "exclude": Texts("Modules to remove from the profile."),
        **_CONTENTS,
        "agents": _AGENTS,
    },
    elsewhere=MappingProxyType(
        {
            "extends": "settings apply to every profile; choose one with 'profile: NAME'",
            "name": "only plans and profiles have a name",
            "description": "only plans and profiles have a description",
        }
    ),
)
