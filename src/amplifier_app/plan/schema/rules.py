"""The forms of the values in a plan: each checks a value, and describes itself as JSON Schema.

`grammar` combines them into one table, from which plans are checked and the schema is printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, read_text, with_items
from amplifier_app.plan.tree.problems import Problems, suggest
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
        lenient: See `amplifier_app.plan.schema.structure.Shape`.
        bundle: See `amplifier_app.plan.schema.structure.Shape`.
    """

    def __init__(self, problems: Problems, *, lenient: bool = False, bundle: bool = False) -> None:
        self.problems = problems
        self.lenient = lenient
        self.bundle = bundle

    def wrong(self, node: Node, where: str, expected: str) -> None:
        """Report a value of the wrong type; there is nothing to read from it."""
        self.problems.add(f"{where!r} is {describe_kind(node)}", node.at, f"expected {expected}")

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
        if not text.strip():
            check.problems.add(f"{where!r} is empty", node.at, "set a value or remove it")
            return None
        return node

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
        if isinstance(node, MapNode):
            return node
        return check.wrong(node, where, "a mapping")

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
        what: What a name is, such as `a module id`.
        values: The rule of the values.
    """

    def __init__(self, description: str, expected: str, what: str, values: Rule) -> None:
        super().__init__(description)
        self._expected = expected
        self._key = Id("The name.", what)
        self._values = values

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, MapNode):
            return check.wrong(node, where, self._expected)
        items: dict[str, Node] = {}
        for name, value in node.items.items():
            key = self._key.read(Scalar(name, node.key_at(name)), where, check)
            read = self._values.read(value, f"{where}.{name}", check)
            if key is not None and read is not None:
                items[name] = read
        return with_items(node, items)

    def schema(self, printing: Printing) -> Schema:
        return {
            "type": ["object"],
            "propertyNames": {"pattern": ID},
            "additionalProperties": printing.use(self._values),
        }


def describe_kind(node: Node) -> str:
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
