"""Compare the outcome of a test with its expectations."""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any, cast

from amplifier_app.base.errors import AppError, ConfigError, Location, UsageError
from amplifier_app.base.json_text import value_text
from amplifier_app.base.outcome import Ending, Outcome, to_outcome
from amplifier_app.plan.explain import misspelling
from amplifier_app.plan.overrides import look_up
from amplifier_app.plan.schema.rules import is_null
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, plain_data, read_text
from amplifier_app.runtime import describe
from amplifier_app.runtime.answer_schema import AnswerSchema
from amplifier_app.runtime.turns.turn import NO_TURN, TurnResult
from amplifier_core.module_sources import PARTS
from amplifier_kit.plan_tests.cases import Case, read_items
from amplifier_kit.plan_tests.grammar import is_condition
from amplifier_kit.plan_tests.running import FileState, Ran, Runner
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.path_patterns import fits
from amplifier_support.text import cut_text

_LONGEST = 20
"""Maximum number of lines of a difference that are shown."""
_WIDTH = 200
_COMPARED_LINES = 200
"""Maximum number of lines that are compared, from the first one that differs."""

_SEARCH_SECONDS = 2.0
"""CPU time for one regular expression: some take hours for a text that almost matches."""


def differences(node: Node, got: str, *, exact: bool = False) -> Iterator[tuple[str, ...]]:
    """Describe how a text differs from an expectation.

    Args:
        node: The text, or conditions.
        got: The text.
        exact: Whether spaces and line ends around it count.
    """
    whole = read_text(node)
    if whole is not None:
        same = whole == got if exact else whole.strip() == got.strip()
        if not same:
            yield _difference(whole, got)
        return
    for text in _texts(node, "contains"):
        if text not in got:
            yield f"does not contain {short(text)}", *excerpt(got)
    for text in _texts(node, "excludes"):
        if text in got:
            yield f"contains {short(text)}", *excerpt(got)
    for pattern in _texts(node, "matches"):
        try:
            with _time_limit(_SEARCH_SECONDS):
                match = re.search(pattern, got, re.MULTILINE)
        except TimeoutError:
            yield (
                f"cannot be compared with {short(pattern)} within {_SEARCH_SECONDS:g} s",
                *excerpt(got),
            )
            continue
        if not match:
            yield f"does not match {short(pattern)}", *excerpt(got)


@contextmanager
def _time_limit(seconds: float) -> Generator[None]:
    """Raise TimeoutError after so much CPU time; in the main thread only, where signals arrive."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def _texts(node: Node, key: str) -> list[str]:
    value = node.items.get(key) if isinstance(node, MapNode) else None
    return [text for item in items(value) if (text := read_text(item)) is not None]


def items(node: Node | None) -> Sequence[Node]:
    """The items of a list; any other value counts as a list of one."""
    if isinstance(node, ListNode):
        return node.items
    return [] if node is None else [node]


def _difference(expected: str, got: str) -> tuple[str, ...]:
    if "\n" not in expected.strip() and "\n" not in got.strip():
        return f"expected {short(expected)}", f"got      {short(got)}"
    lines = _diff(expected.splitlines(), got.splitlines())
    if not lines:
        return ("differs in line ends only",)
    return "differs (- expected, + got)", *cut(lines)


def _diff(expected_lines: list[str], got: list[str]) -> list[str]:
    """The first lines that differ, from the line before them."""
    same = 0
    for expected, actual in zip(expected_lines, got, strict=False):
        if expected != actual:
            break
        same += 1
    # Comparing takes quadratic time.
    part = slice(max(same - 1, 0), same + _COMPARED_LINES)
    diff = difflib.unified_diff(expected_lines[part], got[part], n=1, lineterm="")
    return [line for line in list(diff)[2:] if line[:2] != "@@"]


def excerpt(text: str) -> tuple[str, ...]:
    """The first lines of a text that differs from its expectation."""
    lines = text.splitlines() or ["(empty)"]
    return "got:", *indented(cut(lines))


def cut(lines: Sequence[str]) -> list[str]:
    """The first lines, none of them very long, and how many follow."""
    kept = [cut_text(line, _WIDTH) for line in lines[:_LONGEST]]
    more = len(lines) - _LONGEST
    return [*kept, f"… {describe.count(more, 'more line')}"] if more > 0 else kept


def indented(lines: Sequence[str]) -> list[str]:
    """The lines as details of the one above them."""
    return [f"  {line}" for line in lines]


def short(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    return cut_text(json.dumps(value, ensure_ascii=False, default=str), _WIDTH)


def is_same(expected: Any, got: Any) -> bool:
    """Return True if two values are the same in JSON, where true is not 1."""
    if isinstance(expected, dict) and isinstance(got, dict):
        pairs = cast("dict[Any, Any]", expected), cast("dict[Any, Any]", got)
        return pairs[0].keys() == pairs[1].keys() and all(
            is_same(value, pairs[1][key]) for key, value in pairs[0].items()
        )
    if isinstance(expected, list) and isinstance(got, list):
        lists = cast("list[Any]", expected), cast("list[Any]", got)
        return len(lists[0]) == len(lists[1]) and all(map(is_same, *lists))
    return expected == got and isinstance(expected, bool) == isinstance(got, bool)


class Failure(NamedTuple):
    """An expectation that is not met.

    Attributes:
        what: Which one: its key under `expect`.
        lines: What was expected, and what happened instead.
        at: Where it is written, or else where the test is.
    """

    what: str
    lines: tuple[str, ...]
    at: Location


class _Call(NamedTuple):
    name: str
    input: Any

    def __str__(self) -> str:
        return f"{self.name} {short(self.input)}" if self.input else self.name


def find_failures(case: Case, ran: Ran) -> list[Failure]:
    """The expectations of a test that are not met, the ending first."""
    expect = case.mapping("expect")
    failures = [*_ending(case, expect, ran)]
    failures += [Failure("test", (problem,), case.at) for problem in ran.problems]
    if ran.plan is None:
        return failures
    nothing = ListNode([], case.at)
    agents = case.expected_agents
    # What is denied to an agent that has expectations of its own is compared with those.
    apart = {name for name, node in agents.items() if "denied" in node.items}
    denied = tuple(call for call in ran.turn.denied if call.agent not in apart)
    own = ran._replace(turn=ran.turn._replace(denied=denied))
    for key, check in _CHECKS.items():
        # A call that is denied or fails is a failure unless it is expected.
        node = expect.get(key) or (nothing if key in ("denied", "failed") else None)
        if node is not None:
            failures += [Failure(key, tuple(lines), node.at) for lines in check(node, own)]
    if "answer" in expect:
        failures += _schema(case, expect["answer"], own)
    for name, node in agents.items():
        failures += _agent(case, name, node, ran)
    return failures


def _agent(case: Case, name: str, node: MapNode, ran: Ran) -> Iterator[Failure]:
    """The expectations of an agent that are not met by its delegations, taken together."""
    what = f"agents.{name}"
    delegations = [delegation for delegation in ran.turn.sub_sessions if delegation.agent == name]
    if not delegations:
        yield Failure(what, ("the agent was not called",), node.at)
        return
    sessions = {delegation.session_id for delegation in delegations}
    turn = ran.turn._replace(
        response=delegations[-1].response,
        tools=tuple(tool for delegation in delegations for tool in delegation.tools),
        denied=tuple(call for call in ran.turn.denied if call.session_id in sessions),
    )
    sent = tuple(request for request in ran.sent if request.session_id in sessions)
    its = ran._replace(turn=turn, sent=sent)
    nothing = ListNode([], node.at)
    for key, expected in {**node.items, "failed": node.items.get("failed", nothing)}.items():
        for lines in _CHECKS[key](expected, its):
            yield Failure(f"{what}.{key}", tuple(lines), expected.at)
        if key == "answer":
            for failure in _schema(case, expected, its):
                yield failure._replace(what=f"{what}.{key}")


def _ending(case: Case, expect: Mapping[str, Node], ran: Ran) -> Iterator[Failure]:
    outcome = ran.outcome
    node = expect.get("exit")
    codes = {int(_number(node))} if node is not None else {0}
    agents = case.expected_agents.values()
    denied = (expect.get("denied"), *(agent.items.get("denied") for agent in agents))
    if node is None and any(isinstance(item, ListNode) and item.items for item in denied):
        codes.add(Ending.DENIED.exit_code)
    if node is None and "limit" in expect:
        codes = {Ending.BUDGET.exit_code}
    if outcome.exit_code not in codes:
        code = " or ".join(map(str, sorted(codes)))
        reason = outcome.message.splitlines()
        if ran.plan is None and outcome.hint is not None:
            reason += outcome.hint.splitlines()
        at = case.at if node is None else node.at
        got = f"{outcome.exit_code} ({outcome.ending.value})"
        yield Failure("exit", (f"expected {code}, got {got}", *indented(reason)), at)
    if "error" in expect:
        lines = differences(expect["error"], outcome.message)
        for line in lines if outcome.message else [("the run ended without an error",)]:
            yield Failure("error", line, expect["error"].at)


# -- the answer --------------------------------------------------------------------------


def _schema(case: Case, node: Node, ran: Ran) -> Iterator[Failure]:
    rule = node.items.get("schema") if isinstance(node, MapNode) else None
    if rule is None:
        return
    text = read_text(rule)
    try:
        if text is not None:
            schema = AnswerSchema.read(case.path.parent / Path(text).expanduser())
        else:
            schema = AnswerSchema(plain_data(rule))
    except UsageError as error:
        message = error.message.removeprefix("--schema: ")
        raise ConfigError(f"answer: {message}", hint=error.hint) from error
    answer = schema.check(ran.turn.response)
    if answer is None:
        lines = "the answer contains no JSON value", *excerpt(ran.turn.response)
        yield Failure("answer", lines, rule.at)
    elif answer.problems:
        lines = "does not match the schema", *indented([*answer.problems])
        yield Failure("answer", lines, rule.at)


# -- calls -------------------------------------------------------------------------------


def _calls(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    actual = [_Call(tool.name, tool.input) for tool in ran.turn.tools]
    if isinstance(node, ListNode):
        yield from _all_calls(node.items, actual)
        return
    if not isinstance(node, MapNode):
        return
    left = iter(actual)
    for item in items(node.items.get("include")):
        if not any(_is_call(item, call) for call in left):
            yield f"no call {_described(item)}, or not in this order", *_listed(actual)
            break
    for item in items(node.items.get("exclude")):
        for call in actual:
            if _is_call(item, call):
                yield (f"unexpected call {call}",)


def _denied(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    inputs = {tool.id: tool.input for tool in ran.turn.tools}
    actual = [_Call(call.name, inputs.get(call.id)) for call in ran.turn.denied]
    yield from _all_calls(items(node), actual)


def _failed(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    failed = [tool for tool in ran.turn.tools if tool.outcome == "error"]
    yield from _all_calls(items(node), [_Call(tool.name, tool.input) for tool in failed])


def _all_calls(nodes: Sequence[Node], actual: Sequence[_Call]) -> Iterator[tuple[str, ...]]:
    same = len(nodes) == len(actual)
    if same and all(_is_call(expected, call) for expected, call in zip(nodes, actual, strict=True)):
        return
    for number, (expected, call) in enumerate(zip(nodes, actual, strict=False), 1):
        if not _is_call(expected, call):
            yield (
                f"call {number} differs",
                *indented([f"expected {_described(expected)}", f"got      {call}"]),
                *_listed(actual),
            )
            return
    if len(actual) > len(nodes):
        extra = [str(call) for call in actual[len(nodes) :]]
        yield f"expected {len(nodes)}, got {len(actual)}; unexpected:", *indented(cut(extra))
    else:
        missing = [_described(node) for node in nodes[len(actual) :]]
        lines = indented(cut(missing))
        yield f"expected {len(nodes)}, got {len(actual)}; missing:", *lines, *_listed(actual)


def _listed(actual: Sequence[_Call]) -> list[str]:
    calls = [str(call) for call in actual]
    return ["calls:", *indented(cut(calls))] if calls else ["there were no calls"]


def _described(node: Node) -> str:
    if not isinstance(node, MapNode):
        return str(plain_data(node))
    ((name, arguments),) = node.items.items()
    return str(_Call(name, plain_data(arguments)))


def _is_call(node: Node, call: _Call) -> bool:
    if not isinstance(node, MapNode):
        return False
    ((name, arguments),) = node.items.items()
    if not fnmatch.fnmatchcase(call.name, name) or not isinstance(arguments, MapNode):
        return False
    actual: Any = call.input if isinstance(call.input, Mapping) else {}
    return all(
        key in actual and _is_value(value, actual[key]) for key, value in arguments.items.items()
    )


def _is_value(node: Node, got: Any) -> bool:
    if is_condition(node):
        text = value_text(got)
        return not any(True for _ in differences(node, text))
    return is_same(plain_data(node), got)


# -- files -------------------------------------------------------------------------------


def _files(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    contents = node.items if isinstance(node, MapNode) else {}
    before, after = ran.before, ran.after
    paths = sorted(before.keys() | after.keys())
    changed = [path for path in paths if before.get(path) != after.get(path)]
    for name, content in contents.items():
        if is_null(content):
            yield from ((f"{path} exists",) for path in after if _is_file(name, path, contents))
        elif not any(_is_file(name, path, contents) for path in changed):
            exists = any(_is_file(name, path, contents) for path in after)
            yield (f"{name} was not changed" if exists else f"{name} does not exist",)
    for path in changed:
        expected = [item for name, item in contents.items() if _is_file(name, path, contents)]
        if path not in after:
            if not any(is_null(item) for item in expected):
                yield (f"{path} was removed",)
        elif not expected:
            yield (f"{path} was {'changed' if path in before else 'added'}",)
        for content in expected:
            if path in after and not is_null(content):
                yield from _file(path, content, after[path])


def _is_file(name: str, path: str, contents: Mapping[str, Node]) -> bool:
    """Return True if a path or pattern is for a file; the path of the file itself is before patterns."""
    return name == path or (path not in contents and fits(path, name))


def _file(path: str, node: Node, state: FileState) -> Iterator[tuple[str, ...]]:
    for first, *rest in differences(node, state.content.decode("utf-8", "replace"), exact=True):
        yield f"{path}: {first}", *rest


# -- amounts -----------------------------------------------------------------------------


def _number(node: Node | None) -> Decimal:
    return Decimal(str(node.value)) if isinstance(node, Scalar) else Decimal(0)


def _amount(got: Decimal | None, node: Node) -> Iterator[tuple[str, ...]]:
    if got is None:
        yield ("is unknown",)
    elif isinstance(node, MapNode):
        for key, word in (("at_least", "at least"), ("at_most", "at most")):
            limit = node.items.get(key)
            is_met = (got >= _number(limit)) if key == "at_least" else (got <= _number(limit))
            if limit is not None and not is_met:
                yield (f"expected {word} {_number(limit):f}, got {got:f}",)
    elif got != _number(node):
        yield (f"expected {_number(node):f}, got {got:f}",)


def _tokens(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    usage = ran.turn.usage
    return _amount(Decimal(usage.get("input_tokens", 0) + usage.get("output_tokens", 0)), node)


def _cache_breaks(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    most, breaks = _number(node), ran.cache_breaks
    if breaks is None:
        yield ("is unknown: the orchestrator does not report its requests",)
    elif len(breaks) > most:
        yield f"expected at most {most:f}, got {len(breaks)}:", *indented(cut(breaks))


def _limit(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    reached = None if ran.turn.limit is None else ran.turn.limit.name
    if reached != read_text(node):
        yield (f"expected {read_text(node)}, got {reached or 'none'}",)


# -- the plan and its requests -----------------------------------------------------------


def _request(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    if not isinstance(node, MapNode):
        return
    if not ran.sent:
        yield ("no request was sent",)
        return
    first = ran.sent[0]
    for key, expected in node.items.items():
        if key == "tools":
            for lines in _names(expected, first.tools):
                yield f"tools: {lines[0]}", *lines[1:]
        elif key in ("system", "prompt"):
            for line, *rest in differences(expected, getattr(first, key)):
                yield f"{key}: {line}", *rest
        else:
            got = getattr(first, key)
            if got != read_text(expected):
                yield (f"{key}: expected {read_text(expected)}, got {got or 'none'}",)


def _names(node: Node, got: Sequence[str]) -> Iterator[tuple[str, ...]]:
    expected = [text for item in items(node) if (text := read_text(item)) is not None]
    missing = sorted(set(expected) - set(got))
    extra = sorted(set(got) - set(expected))
    if missing:
        yield (f"missing: {', '.join(missing)}",)
    if extra:
        yield (f"unexpected: {', '.join(extra)}",)


def _modules(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    assert ran.plan is not None
    tree = ran.plan.merged.document
    session = tree.items.get("session")
    nodes = [read_items(session, part).get("module") for part in PARTS]
    for section in ENTRY_SECTIONS:
        nodes += [
            entry.items.get("module")
            for entry in items(tree.items.get(section))
            if isinstance(entry, MapNode)
        ]
    yield from _names(node, [text for item in nodes if (text := read_text(item)) is not None])


def _plan(node: Node, ran: Ran) -> Iterator[tuple[str, ...]]:
    assert ran.plan is not None
    for address, value in node.items.items() if isinstance(node, MapNode) else ():
        got, problem = None, None
        try:
            got = plain_data(look_up(ran.plan.merged.document, address))
        except ConfigError:
            # A misspelt address is never set.
            problem = misspelling(ran.plan, address)
        expected = plain_data(value)
        if problem is not None:
            yield (f"{address}: {problem}",)
        elif not is_same(expected, got):
            yield (
                f"{address}:",
                *indented([f"expected {_value(expected)}", f"got      {_value(got)}"]),
            )


def _value(value: Any) -> str:
    return "nothing" if value is None else short(value)


_CHECKS: Mapping[str, Callable[[Node, Ran], Iterator[tuple[str, ...]]]] = {
    "answer": lambda node, ran: differences(node, ran.turn.response),
    "calls": _calls,
    "denied": _denied,
    "failed": _failed,
    "files": _files,
    "cost": lambda node, ran: _amount(ran.turn.cost, node),
    "steps": lambda node, ran: _amount(Decimal(ran.turn.steps), node),
    "tokens": _tokens,
    "limit": _limit,
    "max_cache_breaks": _cache_breaks,
    "request": _request,
    "modules": _modules,
    "plan": _plan,
}


class Tested(NamedTuple):
    """A test that was run.

    Attributes:
        case: The test.
        failures: The expectations that are not met.
        seconds: How long it took.
        error: Why it could not run; None if it could.
        outcome: How the run ended; None if it could not run.
        turn: What happened.
        notes: Warnings of the session and its modules.
        recorded: Whether its model was recorded.
    """

    case: Case
    failures: tuple[Failure, ...]
    seconds: float
    error: Outcome | None = None
    outcome: Outcome | None = None
    turn: TurnResult = NO_TURN
    notes: tuple[str, ...] = ()
    recorded: bool = False

    @property
    def status(self) -> str:
        """`passed`, `failed` or `error`."""
        if self.error is not None:
            return "error"
        return "failed" if self.failures else "passed"


async def run_case(runner: Runner, case: Case) -> Tested:
    """Run a test; a test that cannot run is reported with the reason."""
    started = time.monotonic()
    try:
        ran = await runner.run(case)
        failures = tuple(find_failures(case, ran))
    except AppError as error:
        return Tested(case, (), time.monotonic() - started, error=to_outcome(error))
    return Tested(
        case,
        failures,
        time.monotonic() - started,
        outcome=ran.outcome,
        turn=ran.turn,
        notes=ran.notes,
        recorded=ran.is_recorded,
    )
