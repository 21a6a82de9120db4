"""The grammar of plans, settings and agents: every key, with the rule of its value.

`rules` checks documents against it, and `json_schema` prints it as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from amplifier_app.base.errors import Location
from amplifier_app.plan.schema.rules import (
    ID,
    VARIABLE_NAME,
    Agents,
    Anything,
    ByName,
    Check,
    Choice,
    Config,
    Fields,
    Flag,
    Id,
    ListOf,
    Number,
    Printing,
    Rule,
    Schema,
    Shape,
    Text,
    Texts,
)
from amplifier_app.plan.tree.entries import entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, plain_data, read_text
from amplifier_app.plan.tree.problems import suggest
from amplifier_core.module_sources import SECTION_KINDS
from amplifier_support.sandbox.policy import KEYS, SCHEMA, PolicyError, parse_policy
from amplifier_support.text import did_you_mean


class SandboxRule(Rule):
    """A policy by name or as a mapping; what is written stays, for reports."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        try:
            parse_policy(plain_data(node))
        except PolicyError as error:
            at, hint = node.at, f"expected {error.expected}"
            if isinstance(node, MapNode) and error.key in node.items:
                at = node.key_at(error.key)
                hint = (suggest(error.key, KEYS) if error.key not in KEYS else None) or hint
            check.problems.add(f"{where!r}: {error.problem}", at, hint)
            return None
        return node

    def schema(self, printing: Printing) -> Schema:
        return dict(SCHEMA)


class Module(Fields):
    """A module: a mapping of its keys, or its id alone; read as a mapping.

    Args:
        kind: Its kind.
        description: What it is for.
        keys: The rule of each key.
        required: Whether `module` is required.
    """

    def __init__(
        self, kind: str, description: str, keys: Mapping[str, Rule], *, required: bool
    ) -> None:
        if required:
            expected, name = "a mapping that starts with 'module:'", f"{kind}_entry"
        else:
            expected, name = "a module id or a mapping with 'module'", kind
        empty = "refused" if required else "dropped"
        super().__init__(description, expected, keys, empty=empty, name=name)
        self._kind = kind
        self._required = required

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            module = self.keys["module"].read(node, where, check)
            return MapNode({"module": module}, node.at) if module is not None else None
        return super().read_value(node, where, check)

    def read_items(self, node: MapNode, where: str, check: Check, *, open: bool) -> MapNode:
        if check.bundle and "id" in node.items and "instance_id" not in node.items:
            # The name of the key in bundles.
            node = _renamed(node, "id", "instance_id")
        entry = super().read_items(node, where, check, open=check.bundle)
        if self._required and "module" not in node.items:
            misspelt = any(did_you_mean(key, ["module"]) for key in node.items)
            if check.bundle or not misspelt:
                check.problems.add(f"{where} has no 'module'", node.at, "add 'module: ID'")
        return entry

    def schema(self, printing: Printing) -> Schema:
        # One rule for both forms, since most keywords apply to one type only: with alternatives, an
        # editor could report only that none of them matches.
        schema = {**super().schema(printing), "type": ["string", "object"], "pattern": ID}
        if self._required:
            schema["required"] = ["module"]
        return printing.with_modules(self._kind, schema)


class Modules(Rule):
    """A list of modules.

    Args:
        section: Its section.
        description: What they are for.
        entry: The rule of each module.
    """

    def __init__(self, section: str, description: str, entry: Module) -> None:
        super().__init__(description, name=section)
        self._entry = entry

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, ListNode):
            return check.wrong(node, where, "a list of modules, each starting with '- module:'")
        entries: list[Node] = []
        seen: dict[str, Location] = {}
        for index, item in enumerate(node.items):
            entry = self._entry.read(item, f"{where}[{index}]", check)
            key = entry_key(entry) if entry is not None else None
            if not isinstance(entry, MapNode) or key is None or "module" not in entry.items:
                continue
            if key in seen:
                check.problems.add(
                    f"duplicate entry {key!r} in {where}: first on line {seen[key].line}",
                    entry.at,
                    "merge the two, or give one of them an 'instance_id'",
                )
                continue
            seen[key] = entry.at
            entries.append(entry)
        return ListNode(entries, node.at)

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["array"], "items": printing.use(self._entry)}


def _renamed(node: MapNode, old: str, new: str) -> MapNode:
    items = {new if key == old else key: value for key, value in node.items.items()}
    return MapNode(items, node.at, {**node.keys, new: node.key_at(old)})


class Keyed(ListOf):
    """A list of mappings with one required key; a string is short for a mapping with only that key.

    Args:
        description: What it is for.
        expected: What to write instead of a wrong value.
        entry: The rule of an entry.
        key: The required key.
        what: What it is, for problems.
    """

    def __init__(
        self, description: str, expected: str, entry: Fields, *, key: str, what: str, **more: Any
    ) -> None:
        super().__init__(description, expected, entry, **more)
        self._key = key
        self._what = what

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        if read_text(node) is not None:
            node = MapNode({self._key: node}, node.at)
        read = super()._read_one(node, where, check)
        if not isinstance(read, MapNode) or self._key in read.items:
            return read
        if isinstance(node, MapNode) and self._key not in node.items:
            check.problems.add(f"{where!r} has no {self._what}", node.at, f"set {self._key!r}")
        return None

    def schema(self, printing: Printing) -> Schema:
        entry = {**printing.use(self._entry), "required": [self._key]}
        return {
            "type": ["array"],
            "items": {"anyOf": [{"type": "string", "pattern": r"\S"}, entry]},
        }


class Rules(ListOf):
    """A list of rules for tool calls, each with an `action`."""

    def __init__(self, description: str, entry: Fields, **more: Any) -> None:
        super().__init__(description, "a list of rules", entry, **more)

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        read = super()._read_one(node, where, check)
        if not isinstance(node, MapNode) or not isinstance(read, MapNode):
            return None
        if "action" not in node.items:
            check.problems.add(f"{where!r} has no action", node.at, "set 'action'")
        for key in ("tool", "path", "command", "host"):
            patterns = read.items.get(key)
            # An empty list would match nothing, or everything.
            for pattern in read.listed(key) or ([] if patterns is None else [patterns]):
                self._check_pattern(key, pattern, where, check)
        return read

    def _check_pattern(self, key: str, node: Node, where: str, check: Check) -> None:
        text = read_text(node) or ""
        if not text.strip():
            check.problems.add(f"'{where}.{key}' is empty", node.at, "set a pattern")
        elif key == "path" and (".." in text.split("/") or "\0" in text):
            hint = "paths are compared with links and '..' resolved"
            check.problems.add(f"'{where}.path' must not contain '..' or NUL", node.at, hint)

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["array"], "items": {**printing.use(self._entry), "required": ["action"]}}


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
        "env": Texts(
            "Environment variables, at least one of which must be set.",
            form=VARIABLE_NAME,
            what="a variable name",
            empty="refused",
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

_CHECKS = Keyed(
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
    key="run",
    what="command",
    examples=[["pytest -q", {"run": "ruff check", "name": "lint", "timeout": 60}]],
)

_SCORES = Keyed(
    "What scores the answers of `amplifier batch`: commands that print a number or a label as JSON, or "
    "functions as 'python:MODULE:FUNCTION', or plans as 'judge:PLAN'.",
    "a list of commands",
    Fields(
        "One score.",
        "a command, or a mapping with 'run'",
        {
            "run": Text(
                "The shell command, 'python:FILE.py:FUNCTION', 'python:MODULE:FUNCTION', or 'judge:PLAN'."
            ),
            "name": Id("Its name in tables and reports. Default: score."),
            "timeout": Number(
                "Time limit of a command or a function in seconds.", whole=False, default=600
            ),
            "rubric": Text(
                "How a judge scores an answer. Default: the judge's instruction has it."
            ),
            "schema": Anything(
                "The JSON Schema of a judge's reply, an object with 'score'. Default: a reason, and a number or a text."
            ),
            "repeat": Number("How often a judge is asked about an answer.", default=1),
            "min": Number("The lowest score with which a row passes.", whole=False, negative=True),
            "max": Number("The highest score with which a row passes.", whole=False, negative=True),
            "equals": Anything("The label, or the number, with which a row passes."),
        },
    ),
    key="run",
    what="command",
    examples=[[{"name": "tests", "run": "./score.sh", "min": 0.8}]],
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
            "host": Texts(
                "Patterns for the host of the `url` in the input, such as '*.example.com'."
            ),
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
    Texts("Source of the folder, or a list of sources that are searched in this order."),
    what="a name",
)

PLUGIN_NAME = r"[a-z0-9][a-z0-9.-]{0,63}"
PLUGIN_PARTS = ("skills", "commands", "agents", "hooks", "servers")
_PLUGINS = Keyed(
    "Plugins: folders with skills, commands, agents, hooks and MCP servers in the formats of other "
    "programs.",
    "a list of sources",
    Fields(
        "A plugin.",
        "a source, or a mapping with 'source'",
        {
            "source": Text(
                "Source of its folder: './FOLDER', 'git+https://HOST/REPO@REF#subdirectory=FOLDER', "
                "or an archive.",
                examples=["git+https://example.com/me/my-plugin@v1.2.0"],
            ),
            "only": Texts(
                "The parts to use. Default: all.",
                form=f"^({'|'.join(PLUGIN_PARTS)})$",
                what=f"one of {', '.join(PLUGIN_PARTS)}",
            ),
            "plugin": Text("Its name in the marketplace at the source."),
            "as": Text("Its name here, if another plugin has the same."),
            "digest": Text("Digest of its content; with another content it is refused."),
            "tracks": Text("Source that `amplifier plugin update` looks for a newer version in."),
        },
    ),
    key="source",
    what="source",
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

_PREFERENCES = ListOf(
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
        "scores": _SCORES,
        "agents": _AGENTS,
        "plugins": _PLUGINS,
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

STATUS_FIELDS = (
    *("mode", "model", "context", "cost", "tokens", "branch", "directory"),
    *("profile", "provider", "session"),
)
"""Fields of the status line; the first seven are shown by default."""


class StatusRule(Fields):
    """The status line: its fields, or the command that prints it."""

    def __init__(self) -> None:
        super().__init__(
            "The status line of the chat: fields from left to right, or a command that prints it.",
            f"a list of {', '.join(STATUS_FIELDS)}, or a mapping with 'command'",
            {
                "command": Text(
                    "Shell command that gets the state as JSON on stdin and prints one line.",
                    empty="refused",
                )
            },
            filled=True,
            examples=[["model", "context"], {"command": "jq -r .model"}],
        )
        self._field = Choice("A field.", STATUS_FIELDS)

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, ListNode):
            return super().read_value(node, where, check)
        fields = [self._field.read(item, where, check) for item in node.items]
        return ListNode([field for field in fields if field is not None], node.at)

    def schema(self, printing: Printing) -> Schema:
        items = {"items": {"enum": list(STATUS_FIELDS)}}
        return {**super().schema(printing), "type": ["array", "object"], **items}


APPROVAL_KEYS = {
    **{"y": "Yes.", "n": "No.", "p": "Yes, also to similar calls.", "P": "Yes, for always."},
    **{"o": "Yes, outside the sandbox.", "t": "No, and say why.", "v": "Show all.", "?": "More."},
    **{"g": "Go, asking for edits.", "a": "Go in auto.", "e": "Edit.", "c": "Comment."},
}
"""The keys that answer a question about a tool call."""


class ApprovalKeys(Rule):
    """Other keys for `APPROVAL_KEYS`, each a character."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, MapNode):
            return check.wrong(node, where, "a mapping such as {y: j}")
        keys = {key: key for key in APPROVAL_KEYS}
        for name, value in node.items.items():
            text = read_text(value) or ""
            if name not in keys:
                check.unknown(name, node, tuple(keys), where)
            elif len(text) != 1 or not text.isprintable() or text.isspace():
                check.wrong(value, f"{where}.{name}", "one character (in quotes)")
            else:
                keys[name] = text
        for name, key in keys.items():
            if list(keys.values()).count(key) > 1 and name in node.items:
                message = f"{key!r} in {where!r} has two meanings"
                check.problems.add(message, node.items[name].at, "give the other one a key as well")
        return node

    def schema(self, printing: Printing) -> Schema:
        key = {"type": "string", "minLength": 1, "maxLength": 1}
        properties = {name: {**key, "description": text} for name, text in APPROVAL_KEYS.items()}
        return {"type": ["object"], "properties": properties, "additionalProperties": False}


THEMES = ("auto", "light", "dark", "plain")
"""Values of `display.theme` that are not files."""

SETTINGS = Shape(
    "the settings file",
    "Settings: a partial plan that is applied to profiles.",
    {
        "profile": Text("The default profile."),
        "sources": ByName(
            "Sources of modules, by module id; they override the plan's.",
            "a mapping 'MODULE: SOURCE'",
            # An empty one removes that of a wider scope.
            Text(
                "Source of the module; null for the plan's own.",
                empty="kept",
                examples=["./my-tool"],
            ),
            what="a module id",
        ),
        "display": Fields(
            "How runs and chats are shown.",
            "a mapping of show, screen, theme, status, keys, approval_keys, signals",
            {
                "show": Choice("Default of `--show`.", ("user", "developer", "internal")),
                "screen": Choice(
                    "What runs draw on a terminal; `plain` is that of `--plain`.",
                    ("full", "plain", "answer"),
                ),
                "theme": Text(
                    "Colours: auto (of the terminal's background), light, dark, plain, or a file.",
                    examples=["light", "./theme.yaml"],
                ),
                "status": StatusRule(),
                "keys": Choice("Keys of the chat's input line.", ("emacs", "vi")),
                "approval_keys": ApprovalKeys(
                    "Keys that answer questions about tool calls; only in your own settings.",
                    examples=[{"y": "j", "n": "k"}],
                ),
                "signals": Choice(
                    "Window title, links to files, and a bell after long prompts.", ("all", "none")
                ),
            },
        ),
        "exclude": Texts("Modules to remove from the profile."),
        **_CONTENTS,
        "agents": _AGENTS,
        "plugins": _PLUGINS,
    },
    elsewhere=MappingProxyType(
        {
            "extends": "settings apply to every profile; choose one with 'profile: NAME'",
            "name": "only plans and profiles have a name",
            "description": "only plans and profiles have a description",
        }
    ),
)
