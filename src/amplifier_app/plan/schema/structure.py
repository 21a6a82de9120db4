"""The structure of a plan: its keys, their values, and one normalised form.

`normalise` checks everything, so that all problems of a file are reported at once, and returns the
form that the rest of the package uses: `session.orchestrator` and `session.context` are mappings
`{module, source, config}`, and every entry of `providers`, `tools` and `hooks` is a mapping with
`module`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from amplifier_app.base.errors import Location
from amplifier_app.plan.schema.rules import (
    NAME,
    Check,
    Printing,
    Rule,
    Schema,
    describe_kind,
    is_null,
)
from amplifier_app.plan.tree.nodes import MapNode, Node, with_items
from amplifier_app.plan.tree.problems import Problems
from amplifier_core.discovery import PARTS
from amplifier_support.named_tuple import NamedTuple

AGENT_NAME = rf"^(?:{NAME}:)?{NAME}$"


class Shape(NamedTuple):
    """The sections of one kind of document.

    Attributes:
        what: Its name in problems.
        description: What it is.
        keys: The rule of each section.
        start: The hint for an empty document; None if it may be empty.
        elsewhere: The hints for sections that belong in other documents.
        tables: Keys of the published form that may contain top-level sections.
        lenient: Whether it has the published form, in which unknown sections belong to other
            programs, unless they look misspelt.
        bundle: Whether it is a bundle, in which all unknown keys belong to other programs.
    """

    what: str
    description: str
    keys: Mapping[str, Rule]
    start: str | None = None
    elsewhere: Mapping[str, str] = MappingProxyType({})
    tables: tuple[str, ...] = ()
    lenient: bool = False
    bundle: bool = False

    def schema(self, printing: Printing) -> Schema:
        """The document as JSON Schema."""
        return {
            "type": "object",
            "description": self.description,
            "properties": {key: printing.use(rule) for key, rule in self.keys.items()},
            "additionalProperties": False,
            # For the author's own use: anchors, other programs.
            "patternProperties": {
                "^x-": {"description": "For your own use; ignored by Amplifier."}
            },
        }


class Agents(Rule):
    """The agents of a document, read by name; see `amplifier_app.plan.documents.reading` for their forms.

    Args:
        description: What they are for.
        agent: The document of one agent.
    """

    def __init__(self, description: str, agent: Shape) -> None:
        super().__init__(description, name="agents")
        self._agent = agent

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, MapNode):
            return check.wrong(
                node, where, "a list of agents and files, or a mapping 'NAME: AGENT'"
            )
        items: dict[str, Node] = {}
        for name, agent in node.items.items():
            if not re.fullmatch(AGENT_NAME, name):
                message = f"{name!r} is not an agent name (letters, digits, '-', '_', '.')"
                check.problems.add(message, node.key_at(name))
            elif isinstance(agent, MapNode):
                shape = self._agent._replace(what=f"agent {name!r}", lenient=check.lenient)
                items[name] = _document(agent, shape, check.problems)
            elif is_null(agent):
                items[name] = MapNode({}, agent.at)
            else:
                check.wrong(agent, f"{where}.{name}", "a mapping with 'description'")
        return with_items(node, items)

    def schema(self, printing: Printing) -> Schema:
        """A list of agents, agents by name, or the published form that lists names and folders."""
        by_name: Schema = {
            "propertyNames": {"pattern": AGENT_NAME},
            "additionalProperties": {"$ref": "#/$defs/agent_by_name"},
        }
        published = {key: {"description": text, **_NAMES} for key, text in AGENT_LISTS.items()}
        inline: Schema = {"description": "Agents by name.", "type": "object", **by_name}
        lists = [
            {"required": [key], "properties": {key: {"not": {"type": "object"}}}}
            for key in AGENT_LISTS
        ]
        return {
            "type": ["array", "object", "string"],
            "pattern": "^(all|none)$",
            "items": {"$ref": "#/$defs/agent_in_list"},
            "if": {"anyOf": [*lists, {"required": ["inline"], "maxProperties": 1}]},
            "then": {
                "properties": {**published, "inline": inline},
                "additionalProperties": False,
            },
            "else": by_name,
        }


AGENT_LISTS = MappingProxyType(
    {
        "dirs": "Folders with agent files.",
        "include": "Agents to use from these folders, by name.",
        "active": "Same as `include`.",
    }
)
"""The keys of the published form of `agents` that list names and folders."""

_NAMES: Schema = {"type": ["string", "array"], "items": {"type": "string"}}


def normalise(root: Node | None, file: str, problems: Problems, shape: Shape) -> MapNode:
    """Check and normalise one document.

    Args:
        root: The document, or None for an empty file.
        file: The file, for a problem without a location.
        problems: Collects the problems.
        shape: The sections it may have.

    Returns:
        The document without `x-…` keys and without everything that has a problem.
    """
    if not isinstance(root, MapNode):
        _report_no_mapping(root, file, problems, shape)
        return MapNode({}, Location(file, 1, 1))
    return _document(root, shape, problems)


def _report_no_mapping(root: Node | None, file: str, problems: Problems, shape: Shape) -> None:
    empty = root is None or is_null(root)
    if empty and shape.start is None:
        return
    if root is None and problems:
        # It could not be parsed, which has been reported.
        return
    found = "is empty" if root is None or empty else f"is {describe_kind(root)}, not a mapping"
    at = root.at if root is not None else Location(file, 1, 1)
    problems.add(f"{shape.what} {found}", at, shape.start)


def _document(root: MapNode, shape: Shape, problems: Problems) -> MapNode:
    check = Check(problems, lenient=shape.lenient, bundle=shape.bundle)
    items: dict[str, Node] = {}
    for key, value in root.items.items():
        if key in shape.keys:
            if (read := shape.keys[key].read(value, key, check)) is not None:
                items[key] = read
        elif key in shape.elsewhere and (key != "agents" or not shape.lenient):
            message = f"{key!r} is not allowed in {shape.what}"
            problems.add(message, root.key_at(key), shape.elsewhere[key])
        elif not key.startswith("x-"):
            check.unknown(key, root, tuple(shape.keys), shape.what, open=True)
    return with_items(root, _with_session(items, problems))


def _with_session(items: dict[str, Node], problems: Problems) -> dict[str, Node]:
    """Move everything that belongs to the session into it, in its one form."""
    session = items.get("session")
    if isinstance(session, MapNode):
        items["session"] = _with_sources(session, problems)
    for key in ("fallbacks", *PARTS):
        outer = items.pop(key, None)
        if outer is None:
            continue
        session = items.get("session")
        session = session if isinstance(session, MapNode) else MapNode({}, outer.at)
        inner = session.items.get(key)
        if key == "fallbacks" and inner is not None:
            hint = f"keep one: the other is on line {session.key_at(key).line}"
            problems.add("'fallbacks' is also set under 'session'", outer.at, hint)
        elif isinstance(inner, MapNode) and isinstance(outer, MapNode):
            _report_conflicts(key, inner, outer, problems)
            both = {**outer.items, **inner.items}
            outer = MapNode(both, inner.at, {**outer.keys, **inner.keys})
        items["session"] = session.with_item(key, outer)
    return items


def _report_conflicts(part: str, inner: MapNode, outer: MapNode, problems: Problems) -> None:
    for key in sorted(inner.items.keys() & outer.items.keys()):
        problems.add(
            f"{key!r} of the {part} is also set under 'session'",
            outer.key_at(key),
            f"keep one: the other is on line {inner.key_at(key).line}",
        )


def _with_sources(session: MapNode, problems: Problems) -> MapNode:
    """The session with `orchestrator_source` and `context_source` moved into their modules."""
    items = dict(session.items)
    for name in PARTS:
        source = items.pop(f"{name}_source", None)
        if source is None:
            continue
        part = items.get(name)
        if not isinstance(part, MapNode):
            items[name] = MapNode({"source": source}, source.at)
            continue
        if "source" in part.items:
            at = part.key_at("source")
            problems.add(f"the {name} has two sources", source.at, f"see line {at.line}")
        items[name] = part.with_item("source", source)
    return with_items(session, items)


def missing_parts(documents: Iterable[MapNode]) -> list[str]:
    """Which of orchestrator and context none of the documents names."""
    sessions = [document.mapping("session") for document in documents]
    return [
        part
        for part in PARTS
        if not any("module" in session.mapping(part).items for session in sessions)
    ]


def check_complete(document: MapNode, problems: Problems) -> None:
    """Check that a merged plan has an orchestrator and a context.

    With other problems, these may be the reason that it has none.
    """
    if problems:
        return
    for part in missing_parts([document]):
        node = document.mapping("session").items.get(part)
        problems.add(
            f"the plan has no {part}",
            node.at if node is not None else document.at,
            f"add 'session: {{{part}: MODULE}}', or 'extends: default'",
        )
