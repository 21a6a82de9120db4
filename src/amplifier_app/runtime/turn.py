"""What one turn did, gathered from the events of its session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast

from amplifier_support.usage import add_counts, dollars

EventHandler = Callable[[str, dict[str, Any]], None]

Status = Literal["success", "incomplete", "cancelled", "error"]
"""How a turn ended: with an answer; at a limit of its orchestrator; stopped; by an error."""

CUT_SHORT = ("length", "content_filter")
"""Reasons of an incomplete turn that has an answer, which is not whole."""

_TOKEN_FIELDS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "reasoning_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
)


def peek(data: object, key: str) -> Any:
    """`data[key]` of event data, or None, without the copy that protects it: for reading only."""
    return dict.get(cast("dict[str, Any]", data), key) if isinstance(data, dict) else None


class Usage:
    """Tokens and cost of some model calls.

    Attributes:
        tokens: Sums by field of the kernel's `Usage`; a field nobody reported is absent.
        cost_usd: US dollars; None as soon as the price of one call is not known.
        calls: Number of calls summed.
    """

    __slots__ = ("calls", "cost_usd", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.cost_usd: Decimal | None = None
        self.calls = 0

    def add(self, usage: Any) -> None:
        """Add one call's usage: the kernel's model, or a dict of the same keys."""
        if not usage:
            return
        add_counts(self.tokens, {name: _field(usage, name) for name in _TOKEN_FIELDS})
        self._add_cost(dollars(_field(usage, "cost_usd")))

    def add_unknown(self, calls: int) -> None:
        """Add calls of which nothing is known."""
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


def _field(usage: Any, name: str) -> Any:
    if isinstance(usage, Mapping):
        return cast("Mapping[str, Any]", usage).get(name)
    return getattr(usage, name, None)


ToolOutcome = Literal["running", "ok", "error", "denied", "interrupted"]

_OUTCOMES: dict[str, ToolOutcome] = {
    "Denied": "denied",
    "Interrupted": "interrupted",
    "BudgetReached": "interrupted",
}
"""Types of the errors in `tool:error` that stand for something else than a failure."""


class ToolUse:
    """One tool call. `outcome` is ``running`` until it ends; `duration` is in seconds."""

    __slots__ = ("duration", "id", "name", "outcome", "reason")

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.outcome: ToolOutcome = "running"
        self.duration: float | None = None
        self.reason: str | None = None


class SubSession(NamedTuple):
    """What a sub-agent did during a turn, in a session of its own.

    Attributes:
        session_id: Its session.
        parent_id: The session that gave it its task, which may be a sub-agent's too.
        agent: The agent of the plan.
        status: How it ended.
        turns: Number of its model calls.
        usage: Tokens of these.
        cost: US dollars; None if a price is not known.
        duration: Seconds.
    """

    session_id: str
    parent_id: str
    agent: str
    status: Status
    turns: int
    usage: dict[str, int]
    cost: Decimal | None
    duration: float


class LimitReached(NamedTuple):
    """The limit of the session's budget that ended a turn.

    Attributes:
        name: Its key under `session.budget`.
        allowed: How much it allows.
        spent: How much was used; None if nobody knows.
    """

    name: str
    allowed: int | float
    spent: int | float | None


class TurnResult(NamedTuple):
    """What came out of one prompt.

    Attributes:
        response: What the orchestrator returned, without blocks that are hidden; empty if there is
            nothing.
        status: How the turn ended.
        reason: Why it is incomplete, in the orchestrator's word; None if it did not say.
        limit: The limit of the session's budget that ended it, if one did.
        usage: Tokens of its model calls and of those of its sub-agents.
        turns: Number of model calls of its own.
        cost: US dollars for all of them; None if a price is not known.
        tools: Every tool call in the order they began.
        sub_sessions: What its sub-agents did, and theirs, in the order they ended.
        denied: Those that were not allowed to run.
        is_hidden: Whether there is an answer, and all of it is hidden.
    """

    response: str
    status: Status
    usage: dict[str, int]
    turns: int
    cost: Decimal | None
    tools: tuple[ToolUse, ...]
    reason: str | None = None
    sub_sessions: tuple[SubSession, ...] = ()
    limit: LimitReached | None = None
    is_hidden: bool = False

    @property
    def has_answer(self) -> bool:
        """Whether `response` is the model's own text, not a remark on why there is none."""
        return self.status == "success" or self.reason in CUT_SHORT

    @property
    def denied(self) -> tuple[ToolUse, ...]:
        return tuple(tool for tool in self.tools if tool.outcome == "denied")


NO_TURN = TurnResult(response="", status="error", usage={}, turns=0, cost=None, tools=())
"""What stands for a turn that never began."""


class TurnRecorder:
    """Counts what happens between two calls of `begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the last turn."""
        self._status: Status = "success"
        self._reason: str | None = None
        self._limit: LimitReached | None = None
        self._requests = 0
        self._turn_count = 0
        self._reported_by_loop = Usage()
        self._unreported = 0
        self._reported_by_provider = Usage()
        self._tools: list[ToolUse] = []
        self._running: dict[str, tuple[ToolUse, float]] = {}
        self._sub_sessions: list[SubSession] = []
        self._spent_below = Usage()

    def handlers(self) -> dict[str, EventHandler]:
        """What to register, by event name."""
        return {
            "provider:request": self._on_request,
            "provider:response": self._on_response,
            "llm:response": self._on_llm_response,
            "tool:pre": self._on_tool_pre,
            "tool:post": self._on_tool_post,
            "tool:error": self._on_tool_error,
            "orchestrator:complete": self._on_complete,
        }

    @property
    def own_usage(self) -> Usage:
        """Tokens and cost of the turn's own model calls so far."""
        # A loop reports each response once; llm:response serves loops that report no usage.
        loop, provider = self._reported_by_loop, self._reported_by_provider
        if provider.calls and not loop.calls:
            return provider
        total = Usage()
        total.merge(loop)
        total.add_unknown(self._unreported)
        return total

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the turn so far, with what its sub-agents spent."""
        total = Usage()
        total.merge(self.own_usage)
        total.merge(self._spent_below)
        return total

    def add_sub_session(self, ended: SubSession, recorder: TurnRecorder) -> None:
        """Count what a sub-agent did, and what its own did, which its `recorder` knows."""
        self._sub_sessions += [ended, *recorder._sub_sessions]
        self._spent_below.merge(recorder.usage)

    def result(self, response: str, status: Status | None = None) -> TurnResult:
        """The turn so far; `status` overrides what the orchestrator said."""
        self._settle("interrupted" if status in ("cancelled", "error") else "denied")
        usage = self.usage
        return TurnResult(
            response=response,
            status=status or self._status,
            usage=dict(usage.tokens),
            turns=max(self._turn_count, self._requests),
            cost=usage.cost_usd,
            tools=tuple(self._tools),
            reason=self._reason,
            sub_sessions=tuple(self._sub_sessions),
            limit=self._limit,
        )

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._requests += 1
        self._settle("denied")

    def _on_response(self, event: str, data: dict[str, Any]) -> None:
        usage = peek(data, "usage")
        self._reported_by_loop.add(usage)
        self._unreported += not usage

    def _on_llm_response(self, event: str, data: dict[str, Any]) -> None:
        self._reported_by_provider.add(peek(data, "usage"))

    def _on_tool_pre(self, event: str, data: dict[str, Any]) -> None:
        name = str(peek(data, "tool_name") or "")
        tool = ToolUse(str(peek(data, "tool_call_id") or f"call-{len(self._tools) + 1}"), name)
        self._tools.append(tool)
        self._running[tool.id] = (tool, time.monotonic())

    def _on_tool_post(self, event: str, data: dict[str, Any]) -> None:
        result = peek(data, "tool_result")
        if result is None:
            result = peek(data, "result")
        self._end(data, "ok" if succeeded(result) else "error", None)

    def _on_tool_error(self, event: str, data: dict[str, Any]) -> None:
        error = peek(data, "error") or {}
        message = _field(error, "message")
        outcome = _OUTCOMES.get(str(_field(error, "type")), "error")
        self._end(data, outcome, str(message) if message else None)

    def _end(self, data: dict[str, Any], outcome: ToolOutcome, reason: str | None) -> None:
        key = self._key(data)
        if key not in self._running:
            # A call refused before it was announced, such as one of an unknown tool.
            self._on_tool_pre("tool:pre", data)
            key = self._tools[-1].id
        tool, started = self._running.pop(key)
        tool.outcome, tool.reason = outcome, reason
        milliseconds = peek(data, "duration_ms")
        measured = isinstance(milliseconds, (int, float))
        tool.duration = milliseconds / 1000 if measured else time.monotonic() - started

    def _key(self, data: dict[str, Any]) -> str:
        call_id = peek(data, "tool_call_id")
        if call_id:
            return str(call_id)
        # Events of loops that give no ids: the call of this tool that has run longest.
        name = peek(data, "tool_name")
        return next((key for key, (tool, _) in self._running.items() if tool.name == name), "")

    def _settle(self, outcome: Literal["denied", "interrupted"]) -> None:
        """Calls announced that never ended were not run (or, in a turn cut short, cut off)."""
        for tool, _ in self._running.values():
            tool.outcome = outcome
        self._running.clear()

    def _on_complete(self, event: str, data: dict[str, Any]) -> None:
        status = peek(data, "status")
        if status in ("success", "incomplete", "cancelled", "error"):
            self._status = status
        reason = peek(data, "reason")
        self._reason = reason if isinstance(reason, str) else None
        self._limit = _limit_in(peek(data, "budget"))
        count = peek(data, "turn_count")
        self._turn_count = count if isinstance(count, int) else 0


def _limit_in(reached: Any) -> LimitReached | None:
    name, allowed, spent = (_field(reached, key) for key in ("limit", "allowed", "spent"))
    if not isinstance(name, str) or not isinstance(allowed, (int, float)):
        return None
    return LimitReached(name, allowed, spent if isinstance(spent, (int, float)) else None)


def succeeded(result: Any) -> bool:
    """Whether a tool's result, the kernel's model or a foreign shape, is not a failure."""
    success = _field(result, "success")
    return True if success is None else bool(success)
