"""The record of a turn: its tool calls, its sub-agents and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, cast

from amplifier_app.sessions.summary import cost_in
from amplifier_support.fields import read_field
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import add_counts, dollars, total_tokens

Status = Literal["success", "incomplete", "cancelled", "error"]
"""The ending of a turn: with an answer; at a limit; stopped by the user; with an error."""

CUT_SHORT = ("length", "content_filter")
"""Reasons of an incomplete turn with a partial answer."""


ToolOutcome = Literal["running", "ok", "error", "denied", "interrupted"]


class ToolUse:
    """One tool call. `outcome` is ``running`` until it ends; `duration_ms` is in milliseconds.

    `decision` names what allowed or denied it, if a module asked for approval; `by_default` is true
    if it was denied because nothing allowed it, `by_tool` if the tool itself refused it. `sandbox` says
    what the sandbox kept it from, or may have, `unanswered` what the tool asked the user in vain; `span` is the id of its operation.
    """

    def __init__(self, id: str, name: str, input: Any = None) -> None:
        self.id = id
        self.name = name
        self.input = input
        self.decision: str | None = None
        self.by_default = False
        self.by_tool = False
        self.sandbox: str | None = None
        self.unanswered: str | None = None
        self.span: Any = None
        self.outcome: ToolOutcome = "running"
        self.duration_ms: int | None = None
        self.reason: str | None = None


class DeniedCall(NamedTuple):
    """A tool call that was refused: by a hook, the user, or the limits of the tool itself.

    Attributes:
        id: Its id.
        name: The tool.
        reason: Why, if known.
        session_id: The session of the sub-agent that made it; None for a call of the turn itself.
        agent: That sub-agent.
        by_default: Whether it was denied because nothing allowed it.
        by_sandbox: Whether it ran, and the sandbox kept it from something or may have.
        by_tool: Whether the tool itself refused it, or asked the user in vain.
        decision: What denied it in a few words, if a module asked for approval.
    """

    id: str
    name: str
    reason: str | None
    session_id: str | None = None
    agent: str | None = None
    by_default: bool = False
    by_sandbox: bool = False
    by_tool: bool = False
    decision: str | None = None


class RunningTool(NamedTuple):
    """A tool call in progress.

    Attributes:
        name: The tool.
        input: Its input.
        seconds: How long it has been running.
    """

    name: str
    input: Any
    seconds: float


class SubSession(NamedTuple):
    """The work of a sub-agent during a turn, in its own session.

    Attributes:
        session_id: Its session.
        parent_id: The session that delegated the task, possibly that of another sub-agent.
        agent: The agent of the plan.
        status: How it ended.
        steps: Number of its model calls.
        usage: Tokens of these calls.
        cost: US dollars; None if a price is unknown.
        duration_ms: Running time in milliseconds.
        response: Its answer.
        tools: Its tool calls, in the order they started.
    """

    session_id: str
    parent_id: str
    agent: str
    status: Status
    steps: int
    usage: dict[str, int]
    cost: Decimal | None
    duration_ms: int
    response: str = ""
    tools: tuple[ToolUse, ...] = ()


class LimitReached(NamedTuple):
    """The limit of the session's budget that ended a turn.

    Attributes:
        name: Its key under `session.budget`.
        allowed: How much it allows.
        spent: How much was used; None if unknown.
        model: The model whose price is unknown, with its provider; None if that was not the reason before a call.
    """

    name: str
    allowed: int | float
    spent: int | float | None
    model: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The limit as in results of runs."""
        return {"name": self.name, "allowed": self.allowed, "spent": self.spent}


class TurnResult(NamedTuple):
    """The result of one prompt.

    Attributes:
        response: The answer of the orchestrator, without hidden blocks; empty if there is none.
        status: How the turn ended.
        reason: Why it is incomplete, as reported by the orchestrator; None if not reported.
        limit: The limit of the session's budget that ended it, if one did.
        usage: Tokens of its model calls, including sub-agents.
        steps: Number of model calls of its own.
        cost: US dollars, including sub-agents; None if a price is unknown.
        tools: Every tool call, in the order they started.
        sub_sessions: Its sub-agents, including nested ones, in the order they ended.
        denied: The refused tool calls: its own, then those of sub-agents.
        is_hidden: Whether there is an answer but all of it is hidden.
        seconds: How long a recorded turn took; None for one that was just seen.
        is_proposal: Whether the response is a proposal that no one has decided on yet.
        answered_models: Model that answered → number of the turn's own steps; several if a fallback took over.
    """

    response: str
    status: Status
    usage: dict[str, int]
    steps: int
    cost: Decimal | None
    tools: tuple[ToolUse, ...]
    reason: str | None = None
    sub_sessions: tuple[SubSession, ...] = ()
    limit: LimitReached | None = None
    is_hidden: bool = False
    denied: tuple[DeniedCall, ...] = ()
    seconds: float | None = None
    is_proposal: bool = False
    answered_models: Mapping[str, int] = MappingProxyType({})

    @property
    def has_answer(self) -> bool:
        """True if `response` is text of the model, not a remark about a missing answer."""
        return self.status == "success" or self.reason in CUT_SHORT


NO_TURN = TurnResult(response="", status="error", usage={}, steps=0, cost=None, tools=())
"""The result of a turn that never started."""


def combine_turns(turns: Sequence[TurnResult]) -> TurnResult:
    """Several turns as one: their sums, with the answer and the ending of the last one."""
    if len(turns) == 1:
        return turns[0]
    tokens: dict[str, int] = {}
    models: dict[str, int] = {}
    for turn in turns:
        add_counts(tokens, turn.usage)
        add_counts(models, turn.answered_models)
    costs = [turn.cost for turn in turns if turn.steps]
    known = [cost for cost in costs if cost is not None]
    return turns[-1]._replace(
        usage=tokens,
        steps=sum(turn.steps for turn in turns),
        cost=sum(known, Decimal(0)) if costs and len(known) == len(costs) else None,
        tools=tuple(tool for turn in turns for tool in turn.tools),
        sub_sessions=tuple(sub for turn in turns for sub in turn.sub_sessions),
        denied=tuple(call for turn in turns for call in turn.denied),
        answered_models=models,
    )


_TOKEN_FIELDS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "reasoning_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    # Calls that were stopped: the service bills them but did not report on them.
    "estimated_calls",
    "cached_calls",
)


class Usage:
    """Tokens and cost of some model calls.

    Attributes:
        tokens: Sums by field of the kernel's `Usage`; unreported fields are absent. With
            `estimated_calls` they are estimates in part, and so is the cost.
        cost_usd: US dollars; None if the price of any call is unknown.
        calls: Number of calls summed.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.cost_usd: Decimal | None = None
        self.calls = 0

    @classmethod
    def of_saved(cls, metadata: Mapping[str, Any]) -> Usage:
        """Return the usage of a saved session so far."""
        usage = cls()
        tokens = metadata.get("usage")
        if isinstance(tokens, dict) and tokens:
            add_counts(usage.tokens, cast("dict[str, object]", tokens))
            usage.calls, usage.cost_usd = 1, cost_in(metadata)
        return usage

    def add(self, usage: Any) -> None:
        """Add one call's usage: the kernel's model, or a dict with the same keys."""
        if not usage:
            return
        counts = {name: read_field(usage, name) for name in _TOKEN_FIELDS}
        add_counts(self.tokens, {**counts, "total_tokens": total_tokens(usage)})
        self._add_cost(dollars(read_field(usage, "cost_usd")))

    def add_unknown(self, calls: int) -> None:
        """Add calls without reported usage."""
        if calls:
            self._add_cost(None, calls)

    def merge(self, other: Usage) -> None:
        """Add another sum to this one."""
        if not other.calls:
            return
        add_counts(self.tokens, other.tokens)
        self._add_cost(other.cost_usd, other.calls)

    def _add_cost(self, cost: Decimal | None, calls: int = 1) -> None:
        first = not self.calls
        self.calls += calls
        if cost is None or (self.cost_usd is None and not first):
            self.cost_usd = None
        else:
            self.cost_usd = (self.cost_usd or Decimal(0)) + cost


EventHandler = Callable[[str, dict[str, Any]], None]


def peek(data: object, key: str) -> Any:
    """Return `data[key]` of event data, or None, without its protective copy: read only."""
    return dict.get(data, key) if isinstance(data, dict) else None


def input_in(data: object) -> Any:
    """The input of the tool call in event data; None if it is missing."""
    value = peek(data, "tool_input")
    return peek(data, "input") if value is None else value


def result_in(data: object) -> Any:
    """The result of the tool call in event data; None if it is missing."""
    result = peek(data, "tool_result")
    return peek(data, "result") if result is None else result


def is_answer(data: object) -> bool:
    """Return true if the user allowed the call of an `approval:granted` event when asked."""
    return str(peek(data, "decided_by")).startswith("answer")


def has_succeeded(result: Any) -> bool:
    """Return True if a tool's result, in the kernel's or another form, is a success."""
    success = read_field(result, "success")
    return True if success is None else bool(success)
