"""The grammar of test files: every key, with the rule of its value.

Files are checked against it, and `amplifier schema test` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from amplifier_app.plan.schema.json_schema import DIALECT, Definitions
from amplifier_app.plan.schema.rules import (
    Anything,
    Check,
    Choice,
    Config,
    Fields,
    Number,
    Printing,
    Rule,
    Schema,
    Text,
    Texts,
)
from amplifier_app.plan.schema.structure import Shape
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, text_of
from amplifier_kit.plan_tests.forms import (
    CONDITIONS,
    CONDITIONS_OF_TEXT,
    TEXT,
    ByName,
    CallForm,
    Content,
    Count,
    Either,
    Expected,
    Line,
    ListOf,
)

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
        "denied": ListOf(
            "The calls that are denied, all of them in this order. Default: none.",
            "a list of calls",
            _CALL,
        ),
        "failed": ListOf(
            "The calls that fail, all of them in this order. Default: none.",
            "a list of calls",
            _CALL,
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


class _Stub(Rule):
    """A result, a list of results, or the word for recorded results."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if text_of(node) == RECORDED:
            return node
        if isinstance(node, ListNode):
            read = [
                _STUB_FIELDS.read(one, f"{where}.{number}", check)
                for number, one in enumerate(node.items, 1)
            ]
            return ListNode([one for one in read if one is not None], node.at)
        if not isinstance(node, MapNode):
            return check.wrong(node, where, f"'{{output: …}}', a list of these, or '{RECORDED}'")
        return _STUB_FIELDS.read_value(node, where, check)

    def schema(self, printing: Printing) -> Schema:
        one = printing.use(_STUB_FIELDS)
        return {"anyOf": [{"const": RECORDED}, one, {"type": "array", "items": one}]}


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
    "mode": Choice("The approval mode.", ("ask", "edits", "read-only", "auto")),
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
