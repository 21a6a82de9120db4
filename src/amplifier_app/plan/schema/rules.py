"""The forms of the values and documents of a plan: each checks what is written, and describes itself as JSON Schema.

`grammar` combines them into one table, from which plans are checked and the schema is printed.

`normalise` checks everything, so that all problems of a file are reported at once, and returns the
form that the rest of the package uses: `session.orchestrator` and `session.context` are mappings
`{module, source, config}`, and every entry of `providers`, `tools` and `hooks` is a mapping with
`module`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, read_text, with_items
from amplifier_app.plan.tree.problems import Problems, suggest
from amplifier_core.module_sources import PARTS
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

Schema: TypeAlias = dict[str, Any]
Empty: TypeAlias = Literal["dropped", "kept", "refused"]

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
ID = rf"^{NAME}$"
VARIABLE_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
REFERENCE = r"\$\{"
"""Matches a string that contains a variable."""

_PUBLISHED = ("ui", "task", "logging", "includes", "spawn", "model_role", "provider_preferences")


class Printing(Protocol):
    """The schema that is being printed."""

    def use(self, rule: Rule) -> Schema:
        """The schema of a rule, or a reference to its definition."""
        ...

    def with_modules(self, kind: str, schema: Schema) -> Schema:
        """The schema of a module's entry, with the ids and configs of the bundled modules."""
        ...


class Check:
    """One check of a document.

    Args:
        problems: Collects the problems.
        lenient: See `Shape`.
        bundle: See `Shape`.
    """

    def __init__(self, problems: Problems, *, lenient: bool = False, bundle: bool = False) -> None:
        self.problems = problems
        self.lenient = lenient
        self.bundle = bundle

    def wrong(self, node: Node, where: str, expected: str) -> None:
        """Report a value of the wrong type; there is nothing to read from it."""
        self.problems.add(f"{where!r} is {_describe_kind(node)}", node.at, f"expected {expected}")

    def empty(self, node: Node, where: str) -> None:
        """Report an empty value where one is required."""
        self.problems.add(f"{where!r} is empty", node.at, "set a value or remove it")

    def unknown(
        self, key: str, node: MapNode, known: Sequence[str], where: str, *, open: bool = False
    ) -> None:
        """Report an unknown key: a problem, or a warning if it may belong to another program.

        Args:
            key: The key.
            node: Its mapping.
            known: The keys the mapping may have.
            where: The address of the mapping.
            open: Whether other programs may have keys of their own there.
        """
        if open and self.lenient and (key in _PUBLISHED or not did_you_mean(key, known)):
            self.problems.note(f"{key!r} in {where} is ignored", node.key_at(key))
        elif open and self.bundle:
            near = did_you_mean(key, known)
            self.problems.note(f"{key!r} in {where} is ignored; {near}", node.key_at(key))
        else:
            # Finding a suggestion takes longer than all the rest.
            hint = None if self.problems.is_full else suggest(key, known)
            self.problems.add(f"unknown key {key!r} in {where}", node.key_at(key), hint)


class Rule:
    """The rule for one value.

    Args:
        description: What it is for.
        empty: Whether an empty value is treated as missing, kept, or a problem.
        name: The name of its definition in the schema; None if it is written out where it is used.
        more: Further annotations for the schema, such as `default` and `examples`.
    """

    def __init__(
        self, description: str, *, empty: Empty = "dropped", name: str | None = None, **more: Any
    ) -> None:
        self.description = description
        self.empty: Empty = empty
        self.name = name
        self.more = more

    def read(self, node: Node, where: str, check: Check) -> Node | None:
        """Check and normalise a value.

        Returns:
            The value; None if it is missing or has a problem.
        """
        if is_null(node) and self.empty != "refused":
            return node if self.empty == "kept" else None
        return self.read_value(node, where, check)

    def as_schema(self, printing: Printing) -> Schema:
        """The rule as JSON Schema."""
        schema: Schema = {**self.schema(printing), "description": self.description, **self.more}
        kinds: list[str] = schema.pop("type", [])
        if kinds and self.empty != "refused":
            kinds = [*kinds, "null"]
        kind = {"type": kinds[0] if len(kinds) == 1 else kinds} if kinds else {}
        return {**kind, **schema}

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        """`read` for a value that is not empty, unless empty values are refused."""
        raise NotImplementedError

    def schema(self, printing: Printing) -> Schema:
        """The rule as JSON Schema, without description; `type` is a list without `"null"`."""
        raise NotImplementedError


class Anything(Rule):
    """A value that is not interpreted."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        return node

    def schema(self, printing: Printing) -> Schema:
        return {}


class Text(Rule):
    """A string that is not blank."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        text = read_text(node)
        if text is None:
            return check.wrong(node, where, f"a string{' (in quotes)' * isinstance(node, Scalar)}")
        return check.empty(node, where) if not text.strip() else node

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["string"], "pattern": r"\S"}


class Texts(Rule):
    """A string or a list of strings; read as a list.

    Args:
        description: What it is for.
        form: Regular expression for each whole string, if they have one form.
        what: What a string of this form is, such as `a variable name`.
    """

    def __init__(
        self, description: str, *, form: str | None = None, what: str = "", **more: Any
    ) -> None:
        super().__init__(description, **more)
        self._form = form
        self._what = what

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        items = node.items if isinstance(node, ListNode) else [node]
        return ListNode([item for item in items if self._is_valid(item, where, check)], node.at)

    def _is_valid(self, node: Node, where: str, check: Check) -> bool:
        text = read_text(node)
        if text is None:
            check.wrong(node, where, "a string or a list of strings")
        elif self._form is not None and not re.fullmatch(self._form, text):
            check.problems.add(f"{text!r} is not {self._what}", node.at, "write the name alone")
            text = None
        return text is not None

    def schema(self, printing: Printing) -> Schema:
        form = {} if self._form is None else {"pattern": self._form}
        return {"type": ["string", "array"], "items": {"type": "string", **form}, **form}


class Number(Rule):
    """A number or a string with variables.

    Args:
        description: What it is for.
        whole: Whether it must be whole.
        zero: Whether it may be 0.
        negative: Whether it may be any number.
    """

    def __init__(
        self,
        description: str,
        *,
        whole: bool = True,
        zero: bool = False,
        negative: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(description, empty="kept", **more)
        self._whole = whole
        self._zero = zero
        self._negative = negative

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and re.search(REFERENCE, value):
            return node
        kinds = int if self._whole else (int, float)
        number = value if isinstance(value, kinds) and not isinstance(value, bool) else None
        if number is not None and (self._negative or number > 0 or (self._zero and number == 0)):
            return node
        limit = ", 0 or greater" if self._zero else " greater than 0"
        limit = "" if self._negative else limit
        return check.wrong(node, where, f"a {'whole ' * self._whole}number{limit}")

    def schema(self, printing: Printing) -> Schema:
        limit = {"minimum": 0} if self._zero else {"exclusiveMinimum": 0}
        if self._negative:
            limit = {}
        kind = "integer" if self._whole else "number"
        return {"type": [kind, "string"], **limit, "pattern": REFERENCE}


class Flag(Rule):
    """True or false."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return node
        return check.wrong(node, where, "true or false")

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["boolean"]}


class Choice(Rule):
    """One of a few strings."""

    def __init__(self, description: str, values: Sequence[str]) -> None:
        super().__init__(description, empty="refused")
        self._values = values

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if read_text(node) in self._values:
            return node
        return check.wrong(node, where, f"one of {', '.join(self._values)}")

    def schema(self, printing: Printing) -> Schema:
        return {"enum": list(self._values)}


class Id(Rule):
    """A module id, or another name of this form."""

    def __init__(self, description: str, what: str = "a module id") -> None:
        super().__init__(description, empty="refused")
        self._what = what

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        text = read_text(node)
        if text is None:
            return check.wrong(node, where, self._what)
        if re.fullmatch(ID, text):
            return node
        hint = "for a path or URL, use 'source:'" if "/" in text or ":" in text else None
        message = f"{text!r} is not {self._what} (letters, digits, '-', '_', '.')"
        check.problems.add(message, node.at, hint)
        return None

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["string"], "pattern": ID}


class Config(Rule):
    """A mapping with any keys; the schema of its module checks it later."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        return node if isinstance(node, MapNode) else check.wrong(node, where, "a mapping")

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["object"]}


class Fields(Rule):
    """A mapping with known keys.

    Args:
        description: What it is for.
        expected: What to write instead of a wrong value.
        keys: The rule of each key.
        open: Whether other programs may have keys of their own here.
        filled: Whether at least one key is required.
        older: Earlier names of keys, which are read as their new names.
    """

    def __init__(
        self,
        description: str,
        expected: str,
        keys: Mapping[str, Rule],
        *,
        open: bool = False,
        filled: bool = False,
        older: Mapping[str, str] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        super().__init__(description, **more)
        self.keys = keys
        self._older = older
        self._expected = expected
        self._open = open
        self._filled = filled

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, MapNode) or (self._filled and not node.items):
            return check.wrong(node, where, self._expected)
        return self.read_items(node, where, check, open=self._open)

    def read_items(self, node: MapNode, where: str, check: Check, *, open: bool) -> MapNode:
        """A mapping with only valid values of known keys; all others are reported."""
        items: dict[str, Node] = {}
        for written, value in node.items.items():
            key = self._older.get(written, written)
            if key not in self.keys:
                check.unknown(key, node, tuple(self.keys), where, open=open)
            elif (read := self.keys[key].read(value, f"{where}.{key}", check)) is not None:
                items[key] = read
        return with_items(node, items)

    def schema(self, printing: Printing) -> Schema:
        schema: Schema = {
            "type": ["object"],
            "properties": {key: printing.use(rule) for key, rule in self.keys.items()},
            "additionalProperties": False,
        }
        return {**schema, "minProperties": 1} if self._filled else schema


class ByName(Rule):
    """A mapping from names to values of one form.

    Args:
        description: What the mapping is for.
        expected: Its form, for problems.
        values: The rule of the values.
        what: What a name is, such as `a module id`; None for any name.
        filled: Whether at least one name is required.
    """

    def __init__(
        self,
        description: str,
        expected: str,
        values: Rule,
        *,
        what: str | None = None,
        filled: bool = False,
    ) -> None:
        super().__init__(description)
        self._expected = expected
        self._key = None if what is None else Id("The name.", what)
        self._values = values
        self._filled = filled

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, MapNode):
            return check.wrong(node, where, self._expected)
        if self._filled and not node.items:
            return check.empty(node, where)
        items: dict[str, Node] = {}
        for name, value in node.items.items():
            key = self._key is None or self._key.read(Scalar(name, node.key_at(name)), where, check)
            read = self._values.read(value, f"{where}.{name}", check)
            if key and read is not None:
                items[name] = read
        return with_items(node, items)

    def schema(self, printing: Printing) -> Schema:
        schema: Schema = {"type": ["object"], "additionalProperties": printing.use(self._values)}
        if self._key is not None:
            schema["propertyNames"] = {"pattern": ID}
        return {**schema, "minProperties": 1} if self._filled else schema


class ListOf(Rule):
    """A list of values of one form.

    Args:
        description: What it is for.
        expected: What to write instead of a wrong value.
        entry: The rule of an entry.
        filled: Whether at least one entry is required.

    Attributes:
        first: The number of the first entry in problems.
    """

    first: ClassVar[int] = 0

    def __init__(
        self, description: str, expected: str, entry: Rule, *, filled: bool = False, **more: Any
    ) -> None:
        super().__init__(description, **more)
        self._expected = expected
        self._entry = entry
        self._filled = filled

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, ListNode):
            return check.wrong(node, where, self._expected)
        if self._filled and not node.items:
            return check.empty(node, where)
        read = [
            self._read_one(item, f"{where}.{number}", check)
            for number, item in enumerate(node.items, self.first)
        ]
        return ListNode([item for item in read if item is not None], node.at)

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        return self._entry.read(node, where, check)

    def schema(self, printing: Printing) -> Schema:
        schema: Schema = {"type": ["array"], "items": printing.use(self._entry)}
        return {**schema, "minItems": 1} if self._filled else schema


def _describe_kind(node: Node) -> str:
    """The type of a value, in words."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if isinstance(node.value, bool):
        return "a boolean"
    if isinstance(node.value, str):
        return "a string"
    return "empty" if node.value is None else "a number"


def is_null(node: Node) -> bool:
    """Return True if a value is empty."""
    return isinstance(node, Scalar) and node.value is None


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
            "then": {"properties": {**published, "inline": inline}, "additionalProperties": False},
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
    fault = "is empty" if root is None or empty else f"is {_describe_kind(root)}, not a mapping"
    at = root.at if root is not None else Location(file, 1, 1)
    problems.add(f"{shape.what} {fault}", at, shape.start)


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
