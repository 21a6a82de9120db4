"""The forms of the values in a test file, next to those of plans (`amplifier_app.plan.schema.rules`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from amplifier_app.plan.schema.rules import (
    Check,
    Fields,
    Number,
    Printing,
    Rule,
    Schema,
    Text,
    Texts,
    is_null,
)
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, text_of, with_items


def _report_empty(node: Node, where: str, check: Check) -> None:
    """An empty value expects nothing."""
    check.problems.add(f"{where!r} is empty", node.at, "set a value or remove it")


class ByName(Rule):
    """A mapping from any names to values of one form.

    Args:
        description: Its description in the schema.
        expected: What to write instead of a wrong value.
        values: The rule of each value.
        filled: Whether at least one name is required.
    """

    def __init__(
        self, description: str, expected: str, values: Rule, *, filled: bool = False
    ) -> None:
        super().__init__(description)
        self._expected = expected
        self._values = values
        self._filled = filled

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, MapNode):
            return check.wrong(node, where, self._expected)
        if self._filled and not node.items:
            return _report_empty(node, where, check)
        read = {
            name: self._values.read(value, f"{where}.{name}", check)
            for name, value in node.items.items()
        }
        return with_items(node, {name: one for name, one in read.items() if one is not None})

    def schema(self, printing: Printing) -> Schema:
        schema: Schema = {
            "type": ["object"],
            "additionalProperties": printing.use(self._values),
        }
        return {**schema, "minProperties": 1} if self._filled else schema


class ListOf(Rule):
    """A list of values of one form.

    Args:
        description: Its description in the schema.
        expected: What to write instead of a wrong value.
        items: The rule of each value.
        filled: Whether at least one value is required.
    """

    def __init__(
        self, description: str, expected: str, items: Rule, *, filled: bool = False
    ) -> None:
        super().__init__(description)
        self._expected = expected
        self._items = items
        self._filled = filled

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, ListNode):
            return check.wrong(node, where, self._expected)
        if self._filled and not node.items:
            return _report_empty(node, where, check)
        read = [
            self._items.read(one, f"{where}.{number}", check)
            for number, one in enumerate(node.items, 1)
        ]
        return ListNode([one for one in read if one is not None], node.at)

    def schema(self, printing: Printing) -> Schema:
        schema: Schema = {"type": ["array"], "items": printing.use(self._items)}
        return {**schema, "minItems": 1} if self._filled else schema


class Content(Rule):
    """Any string, also an empty one."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if text_of(node) is None:
            return check.wrong(node, where, "a string (in quotes)")
        return node

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["string"]}


class Line(Text):
    """A string of one line."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        read = super().read_value(node, where, check)
        if read is not None and re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", text_of(read) or ""):
            hint = "write it in one line"
            check.problems.add(f"{where!r} has line breaks or control characters", node.at, hint)
            return None
        return read


class Expected(Fields):
    """A mapping of expectations: an empty value would expect nothing, and is a problem."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        for key, value in node.items.items() if isinstance(node, MapNode) else ():
            if is_null(value):
                _report_empty(value, f"{where}.{key}", check)
        return super().read_value(node, where, check)


class Parts(Texts):
    """A text or a list of texts, none of them empty."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if isinstance(node, ListNode) and not node.items:
            _report_empty(node, where, check)
        return super().read_value(node, where, check)

    def _is_valid(self, node: Node, where: str, check: Check) -> bool:
        if not super()._is_valid(node, where, check):
            return False
        if not text_of(node):
            _report_empty(node, where, check)
            return False
        return True


class Patterns(Parts):
    """A regular expression or a list of them."""

    def _is_valid(self, node: Node, where: str, check: Check) -> bool:
        if not super()._is_valid(node, where, check):
            return False
        try:
            re.compile(text_of(node) or "")
        except re.error as error:
            check.problems.add(f"{where!r} is not a regular expression: {error}", node.at)
            return False
        return True


class Either(Rule):
    """A value of a short form, or a mapping.

    Args:
        description: Its description in the schema.
        short: The rule of everything that is not a mapping.
        whole: The rule of the mapping.
    """

    def __init__(
        self, description: str, short: Rule, whole: Rule, *, name: str | None = None
    ) -> None:
        super().__init__(description, empty=whole.empty, name=name)
        self._short = short
        self._whole = whole

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        rule = self._whole if isinstance(node, MapNode) else self._short
        return rule.read_value(node, where, check)

    def schema(self, printing: Printing) -> Schema:
        return {"anyOf": [printing.use(self._short), printing.use(self._whole)]}


class Count(Number):
    """A number that may be 0; no variables."""

    def __init__(self, description: str, *, whole: bool = True) -> None:
        super().__init__(description, whole=whole, zero=True)

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) or value == math.inf:
            return check.wrong(node, where, "a number, 0 or greater")
        return super().read_value(node, where, check)


CONDITIONS: Mapping[str, Rule] = {
    "contains": Parts("Texts that it contains."),
    "excludes": Parts("Texts that it does not contain."),
    "matches": Patterns("Regular expressions that match a part of it; '^' and '$' match at lines."),
}
CONDITIONS_OF_TEXT = Expected(
    "Conditions for a text.", "a text or conditions", CONDITIONS, filled=True
)
TEXT = Either(
    "The text itself, without spaces and line ends around it, or conditions.",
    Content("The text."),
    CONDITIONS_OF_TEXT,
    name="text",
)


def is_condition(node: Node) -> bool:
    """Whether a value is a mapping of conditions for a text."""
    return isinstance(node, MapNode) and bool(node.items) and node.items.keys() <= CONDITIONS.keys()


class CallForm(Rule):
    """A tool call: the name of the tool, or `TOOL: INPUT`.

    Args:
        description: Its description in the schema.
        is_expected: Whether it describes an expected call: a tool may be a pattern, and values of
            the input may be conditions.
    """

    def __init__(self, description: str, *, is_expected: bool) -> None:
        super().__init__(description, name="expected_call" if is_expected else "call")
        self._is_expected = is_expected

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if isinstance(node, Scalar) and text_of(node):
            return MapNode({str(node.value): MapNode({}, node.at)}, node.at)
        if not isinstance(node, MapNode) or len(node.items) != 1:
            return check.wrong(node, where, "a tool, or one 'TOOL: {FIELD: VALUE}'")
        ((name, given),) = node.items.items()
        if not isinstance(given, MapNode):
            return check.wrong(given, f"{where}.{name}", "the input as a mapping '{FIELD: VALUE}'")
        if self._is_expected:
            for field, value in given.items.items():
                if is_condition(value):
                    TEXT.read(value, f"{where}.{name}.{field}", check)
        return node

    def schema(self, printing: Printing) -> Schema:
        by_name: Schema = {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": {"type": "object"},
        }
        return {"anyOf": [{"type": "string", "pattern": r"\S"}, by_name]}
