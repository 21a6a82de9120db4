"""The grammar of test files: every key, with the rule of its value.

Files are checked against it, and `amplifier schema test` prints it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from amplifier_app.plan.schema import rules
from amplifier_app.plan.schema.json_schema import DIALECT, Definitions
from amplifier_app.plan.schema.rules import (
    Anything,
    ByName,
    Check,
    Choice,
    Config,
    Fields,
    Number,
    Printing,
    Rule,
    Schema,
    Shape,
    Text,
    Texts,
    is_null,
)
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, read_text


class ListOf(rules.ListOf):
    """A list of values of one form, which people count from 1."""

    first = 1


class Content(Rule):
    """Any string, also an empty one."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if read_text(node) is None:
            return check.wrong(node, where, "a string (in quotes)")
        return node

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["string"]}


class Line(Text):
    """A string of one line."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        read = super().read_value(node, where, check)
        if read is not None and re.search(
            r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", read_text(read) or ""
        ):
            hint = "write it in one line"
            check.problems.add(f"{where!r} has line breaks or control characters", node.at, hint)
            return None
        return read


class Expected(Fields):
    """A mapping of expectations: an empty value would expect nothing, and is a problem."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        for key, value in node.items.items() if isinstance(node, MapNode) else ():
            if is_null(value):
                check.empty(value, f"{where}.{key}")
        return super().read_value(node, where, check)


class Parts(Texts):
    """A text or a list of texts, none of them empty."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if isinstance(node, ListNode) and not node.items:
            check.empty(node, where)
        return super().read_value(node, where, check)

    def _is_valid(self, node: Node, where: str, check: Check) -> bool:
        if not super()._is_valid(node, where, check):
            return False
        if not read_text(node):
            check.empty(node, where)
            return False
        return True


class Patterns(Parts):
    """A regular expression or a list of them."""

    def _is_valid(self, node: Node, where: str, check: Check) -> bool:
        if not super()._is_valid(node, where, check):
            return False
        try:
            re.compile(read_text(node) or "")
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
    """Return True if a value is a mapping of conditions for a text."""
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
        if isinstance(node, Scalar) and read_text(node):
            return MapNode({str(node.value): MapNode({}, node.at)}, node.at)
        if not isinstance(node, MapNode) or len(node.items) != 1:
            return check.wrong(node, where, "a tool, or one 'TOOL: {FIELD: VALUE}'")
        ((name, fields),) = node.items.items()
        if not isinstance(fields, MapNode):
            return check.wrong(fields, f"{where}.{name}", "the input as a mapping '{FIELD: VALUE}'")
        if self._is_expected:
            for field, value in fields.items.items():
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


RECORDED = "recorded"
"""Instead of a stub: the tool answers what it did when the model was recorded."""


# -- what is expected --------------------------------------------------------------------

_ANSWER = Either(
    "The answer, or conditions for it.",
    Content("The answer, without spaces and line ends around it."),
    Expected(
        "Conditions for the answer.",
        "a text or conditions",
        {
            **CONDITIONS,
            "schema": Either(
                "A JSON Schema that the answer, read as JSON, matches.",
                Line("Its file."),
                Config("The schema."),
            ),
        },
        filled=True,
    ),
)
_CONTENT = Either(
    "The content of the file, or conditions for it: '{}' for any content, null for no file.",
    Content("The content."),
    Expected("Conditions for the content.", "a text or conditions", CONDITIONS, empty="kept"),
)


def _amount(description: str, *, whole: bool = True) -> Either:
    limits = Expected(
        "Limits.",
        "a number, or '{at_most: NUMBER}'",
        {
            "at_least": Count("The lowest value.", whole=whole),
            "at_most": Count("The highest value.", whole=whole),
        },
        filled=True,
    )
    return Either(description, Count("The value.", whole=whole), limits)


_CALL = CallForm(
    "A call: the name of the tool, or 'TOOL: {FIELD: VALUE}' with the fields to compare; a value is "
    "compared as it is, or with conditions.",
    is_expected=True,
)
_CALLS = Either(
    "The tool calls of the session, all of them in this order; or '{include: …}' for calls that are "
    "made in this order among others, '{exclude: …}' for calls that are not made.",
    ListOf("All calls.", "a list of calls", _CALL),
    Expected(
        "Some calls.",
        "a list of calls, or '{include: …, exclude: …}'",
        {
            "include": ListOf(
                "Calls that are made in this order, among others.",
                "a list of calls",
                _CALL,
                filled=True,
            ),
            "exclude": ListOf("Calls that are not made.", "a list of calls", _CALL, filled=True),
        },
        filled=True,
    ),
)
_REQUEST = Expected(
    "The first request to the model.",
    "a mapping of system, prompt, tools, provider, model",
    {
        "system": TEXT,
        "prompt": TEXT,
        "tools": Texts("The tools that it offers, all of them in any order."),
        "provider": Text("The name of the provider."),
        "model": Text("The model of the provider, or of the request if it names one."),
    },
    filled=True,
)
_DENIED = ListOf(
    "The calls that are denied, all of them in this order. Default: none.",
    "a list of calls",
    _CALL,
)
_FAILED = ListOf(
    "The calls that fail, all of them in this order. Default: none.",
    "a list of calls",
    _CALL,
)
_AGENT = Expected(
    "What an agent does, in all of its delegations together.",
    "a mapping such as '{calls: […], answer: …}'",
    {
        "answer": _ANSWER,
        "calls": _CALLS,
        "denied": _DENIED,
        "failed": _FAILED,
        "request": _REQUEST,
    },
    filled=True,
)
EXPECT = Expected(
    "What must hold after the run.",
    "a mapping such as '{answer: …, calls: […]}'",
    {
        "exit": Count(
            "The exit code of 'amplifier run'. Default: 0; with 'denied' also 8, with 'limit' 7."
        ),
        "error": Either(
            "The message of the error that ends the run, or conditions for it.",
            Text("The message."),
            CONDITIONS_OF_TEXT,
        ),
        "answer": _ANSWER,
        "calls": _CALLS,
        "denied": _DENIED,
        "failed": _FAILED,
        "agents": ByName(
            "What the agents do that must be called, by agent.",
            "a mapping 'AGENT: {calls: …}'",
            _AGENT,
            filled=True,
        ),
        "files": ByName(
            "The files that differ from those before the run, all of them: by path or pattern, in which '*' "
            "matches within a folder and '**' any number of folders.",
            "a mapping 'PATH: CONTENT'",
            _CONTENT,
        ),
        "cost": _amount("US dollars.", whole=False),
        "steps": _amount("Model calls."),
        "tokens": _amount("Input and output tokens."),
        "limit": Text("The limit of 'session.budget' that ends the run, such as max_cost."),
        "max_cache_breaks": Count(
            "How many requests may fail to begin like the one before them, so that a provider's cache "
            "cannot serve them."
        ),
        "request": _REQUEST,
        "modules": Texts("The modules of the plan, all of them in any order."),
        "plan": ByName(
            "Values of the plan as it is written, with what it extends: by address, such as "
            "'session.budget.max_cost'; null for a value that is not set.",
            "a mapping 'ADDRESS: VALUE'",
            Anything("The value.", empty="kept"),
            filled=True,
        ),
    },
    name="expect",
)

# -- what runs ---------------------------------------------------------------------------

_REPLY = Either(
    "A reply of the model: a text, or a mapping.",
    Text("The text."),
    Fields(
        "A reply.",
        "a text, or a mapping of text and calls",
        {
            "text": Content("The text."),
            "calls": ListOf(
                "The tool calls.", "a list of calls", CallForm("A call.", is_expected=False)
            ),
            "thinking": Content("The thinking before it."),
            "usage": Config("Token counts and 'cost_usd'. Default: estimated, at no cost."),
            "finish_reason": Choice(
                "Why it ends.", ("stop", "tool_calls", "length", "content_filter")
            ),
            "error": Config("An error instead: '{type: RateLimitError, message: …}'."),
        },
        filled=True,
    ),
    name="reply",
)
_REPLIES = ListOf("Replies, one for each request.", "a list of replies", _REPLY)
_STUB_FIELDS = Fields(
    "What a tool answers instead of running.",
    "a mapping with 'output' or 'error'",
    {
        "output": Anything("Its output.", empty="kept"),
        "error": Text("The message of its failure."),
    },
    filled=True,
)


_STUBS = ListOf("Results, one for each call.", "a list of results", _STUB_FIELDS)


class _Stub(Rule):
    """A result, a list of results, or the word for recorded results."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if read_text(node) == RECORDED:
            return node
        if isinstance(node, ListNode):
            return _STUBS.read_value(node, where, check)
        if not isinstance(node, MapNode):
            return check.wrong(node, where, f"'{{output: …}}', a list of these, or '{RECORDED}'")
        return _STUB_FIELDS.read_value(node, where, check)

    def schema(self, printing: Printing) -> Schema:
        fields = printing.use(_STUB_FIELDS)
        return {"anyOf": [{"const": RECORDED}, fields, {"type": "array", "items": fields}]}


_RUN: Mapping[str, Rule] = {
    "plan": Line("The plan file."),
    "profile": Text("The profile, instead of a plan file."),
    "prompt": Text("The prompt."),
    "script": ListOf(
        "What the model answers, one reply for each request.", "a list of replies", _REPLY
    ),
    "agents": ByName(
        "What the models of agents answer, by agent; each delegation starts from the first reply.",
        "a mapping 'AGENT: [REPLY, …]'",
        _REPLIES,
    ),
    "recording": Line(
        "A recording of the model (amplifier run --record), instead of a script; 'amplifier test "
        "--update' records it."
    ),
    "match": Choice(
        "What of the requests must be as recorded: 'structure', so that prompts may change but not "
        "the tools, or 'all'. Default: structure.",
        ("structure", "all"),
    ),
    "tools": ByName(
        "Tools that do not run: what they answer, to every call or, as a list, one call after the "
        f"other; '{RECORDED}' for what they answered in the recording.",
        "a mapping 'TOOL: {output: …}'",
        _Stub("What a tool answers.", name="stub"),
    ),
    "files": ByName(
        "Files of the working directory, by path.",
        "a mapping 'PATH: CONTENT'",
        Content("The content."),
    ),
    "workdir": Line("A folder to copy as the working directory. Default: an empty one."),
    "approve": Choice(
        "How to answer approval requests. Default: deny.", ("deny", "allow", "policy")
    ),
    "mode": Choice("The approval mode.", ("ask", "edits", "propose", "read-only", "auto")),
    "timeout": Number("Time limit in seconds. Default: 60.", whole=False),
    "expect": EXPECT,
}
_TEST = Fields(
    "A test; its keys replace those of the file, and mappings are merged.",
    "a mapping with 'name'",
    {"name": Line("The name of the test."), **_RUN},
    filled=True,
    name="test",
)
TEST_FILE = Shape(
    "the test file",
    "Tests of a plan: the keys of a test, for all tests of the file, and the tests. Without 'tests', the "
    "file is one test.",
    {**_RUN, "tests": ListOf("The tests.", "a list of tests", _TEST)},
    "start with 'plan: FILE'",
    MappingProxyType({"name": "only tests have a name; the file is named by its path"}),
)


def test_schema() -> Schema:
    """The JSON Schema of test files."""
    definitions = Definitions(())
    schema = TEST_FILE.schema(definitions)
    return {
        "$schema": DIALECT,
        "title": "Amplifier tests",
        **schema,
        "$defs": dict(definitions.found),
    }
