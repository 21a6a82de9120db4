"""The record of a turn, gathered from the events of its session."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any, Literal
from weakref import WeakKeyDictionary

from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.turns.turn import (
    DeniedCall,
    EventHandler,
    LimitReached,
    RunningTool,
    Status,
    SubSession,
    ToolOutcome,
    ToolUse,
    TurnResult,
    Usage,
    has_succeeded,
    peek,
    result_in,
    total_tokens,
)
from amplifier_core.events import APPROVAL_DENIED
from amplifier_core.llm_errors import ContextLengthError, LLMError
from amplifier_support.fields import read_field
from amplifier_support.text import lazy_pattern

_COUNT = lazy_pattern(r"\b\d{1,3}(?:,\d{3})+\b|\b\d{4,}\b")
_OUTCOMES: dict[str, ToolOutcome] = {
    "Denied": "denied",
    "Interrupted": "interrupted",
    "BudgetReached": "interrupted",
}
"""Types of errors that do not mean a failure."""


class TurnRecorder:
    """Records what happens after each call of `begin`.

    Attributes:
        context_tokens: Tokens of the conversation as of the last model call; None before the first.
        context_limit: Tokens that fit the model, from its refusal of a longer request; None if unknown.
        provider_error: The error of a provider that a loop returns as its answer.
        answered: Provider and model of the answers of the turn, in order.
        proposal: The last proposal that no one has decided on yet; None if there is none.
    """

    def __init__(self) -> None:
        self.context_tokens: int | None = None
        self.context_limit: int | None = None
        self._tools: list[ToolUse] = []
        self._last_tool: ToolUse | None = None
        self.begin()

    def begin(self) -> None:
        """Reset for a new turn."""
        self.provider_error: LLMError | None = None
        self.proposal: str | None = None
        self._status: Status = "success"
        self._reason: str | None = None
        self._limit: LimitReached | None = None
        self._requests = 0
        self._is_at_limit = False
        self._is_denied = False
        self._has_called = False
        self._turn_count = 0
        self._reported_by_loop = Usage()
        self._loop_reports = False
        self._models: Counter[str] = Counter()
        self.answered: dict[tuple[str, str], None] = {}
        self._unreported = 0
        self._reported_by_provider = Usage()
        self._last_tool = self.last_tool
        self._tools = []
        self._running: dict[str, tuple[ToolUse, float]] = {}
        self._by_task = WeakKeyDictionary[asyncio.Task[Any], str]()
        self._questioned: set[str] = set()
        self._sub_sessions: list[SubSession] = []
        self._sub_agent_usage = Usage()
        self._denied_below: list[DeniedCall] = []

    def handlers(self) -> dict[str, EventHandler]:
        """Return the handlers by event name."""
        return {
            "provider:request": self._on_request,
            "provider:response": self._on_response,
            "provider:error": self._on_error,
            "error:provider": self._on_answered_error,
            "llm:response": self._on_llm_response,
            "tool:pre": self._on_tool_pre,
            "tool:post": self._on_tool_post,
            "tool:error": self._on_tool_error,
            "error:tool": self._on_unknown_tool,
            "approval:required": self._on_question,
            "approval:granted": self._on_decision,
            APPROVAL_DENIED: self._on_decision,
            "sandbox:denied": self._on_sandbox,
            "tool:unanswered": self._on_unanswered,
            "orchestrator:complete": self._on_complete,
            "proposal:made": self._on_proposal,
        }

    def denial_handlers(self) -> tuple[EventHandler, EventHandler]:
        """Return the handlers to run before and after those of all modules on `prompt:submit` and
        `provider:request`: a hook that denies one of these keeps it from the second handler.
        """
        return self._on_asked, self._on_allowed

    @property
    def own_usage(self) -> Usage:
        """Tokens and cost of the turn's own model calls so far."""
        # A loop reports each response once; llm:response is for loops that report no usage.
        loop, provider = self._reported_by_loop, self._reported_by_provider
        if provider.calls and not self._loop_reports:
            return provider
        total = Usage()
        total.merge(loop)
        total.add_unknown(self._unreported)
        return total

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the turn so far, including sub-agents."""
        total = Usage()
        total.merge(self.own_usage)
        total.merge(self._sub_agent_usage)
        return total

    @property
    def last_tool(self) -> ToolUse | None:
        """The tool call that started last, also of an earlier turn."""
        return self._tools[-1] if self._tools else self._last_tool

    def with_call_id(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an event of a call with the id and duration that `result` has.

        Some loops send neither. Valid until the task that emits the event emits that of another call.
        """
        task = asyncio.current_task()
        call_id = peek(data, "tool_call_id") or (task and self._by_task.get(task))
        tool = next((tool for tool in reversed(self._tools) if tool.id == call_id), None)
        if tool is None:
            return data
        filled = {**data, "tool_call_id": tool.id}
        if peek(data, "duration_ms") is None and tool.id not in self._running:
            filled["duration_ms"] = tool.duration_ms
        return filled

    @property
    def has_requested(self) -> bool:
        """True if the model was called."""
        return bool(self._requests)

    @property
    def running(self) -> list[RunningTool]:
        """The tool calls in progress, in the order they started; not those that wait for approval."""
        now = time.monotonic()
        return [
            RunningTool(tool.name, tool.input, now - since)
            for key, (tool, since) in self._running.items()
            if key not in self._questioned
        ]

    def add_sub_session(self, ended: SubSession, recorder: TurnRecorder) -> None:
        """Add a sub-agent, and its own sub-agents from its `recorder`."""
        self._sub_sessions += [ended, *recorder._sub_sessions]
        by = {"session_id": ended.session_id, "agent": ended.agent}
        self._denied_below += [call._replace(**by) for call in recorder._own_denied]
        self._denied_below += recorder._denied_below
        self._sub_agent_usage.merge(recorder.usage)

    def result(self, response: str, status: Status | None = None) -> TurnResult:
        """Return the turn so far; `status` overrides the orchestrator's status."""
        is_stopped = status in ("cancelled", "error") or self._limit is not None
        self._settle("interrupted" if is_stopped else "denied")
        usage = self.usage
        ended, reason = (status, self._reason) if status else self._ending(response)
        return TurnResult(
            response=response,
            status=ended,
            usage=dict(usage.tokens),
            steps=max(self._turn_count, self._requests),
            cost=usage.cost_usd,
            tools=tuple(self._tools),
            reason=reason,
            sub_sessions=tuple(self._sub_sessions),
            limit=self._limit,
            denied=(*self._own_denied, *self._denied_below),
            answered_models=dict(self._models),
        )

    def _ending(self, response: str) -> tuple[Status, str | None]:
        """Return the loop's ending of the turn; what it does not report is seen from the events."""
        status = self._status
        if self._reason is not None or status not in ("success", "incomplete"):
            return status, self._reason
        if self._is_denied and status == "success":
            return "incomplete", "denied"  # the answer is why
        if not response.strip() and self._is_at_limit:
            return "incomplete", "max_iterations"
        is_empty = not response.strip() and self._limit is None and not self._has_called
        return status, "empty" if is_empty and status == "incomplete" else None

    @property
    def _own_denied(self) -> list[DeniedCall]:
        calls: list[DeniedCall] = []
        for tool in self._tools:
            if tool.outcome == "denied":
                calls.append(
                    DeniedCall(
                        tool.id,
                        tool.name,
                        tool.reason,
                        by_default=tool.by_default,
                        by_tool=tool.by_tool,
                        decision=tool.decision,
                    )
                )
            elif tool.unanswered is not None:
                calls.append(DeniedCall(tool.id, tool.name, tool.unanswered, by_tool=True))
            elif tool.sandbox:
                calls.append(DeniedCall(tool.id, tool.name, tool.sandbox, by_sandbox=True))
        return calls

    def _on_asked(self, event: str, data: dict[str, Any]) -> None:
        # Some loops do not let hooks deny the request for a last answer.
        self._is_denied = peek(data, "max_reached") is not True

    def _on_allowed(self, event: str, data: dict[str, Any]) -> None:
        self._is_denied = False

    def _on_proposal(self, event: str, data: dict[str, Any]) -> None:
        text = str(peek(data, "proposal") or "")
        self.proposal = text if peek(data, "decision") == "open" and text.strip() else None

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._requests += 1
        self._has_called = False
        # Some loops ask for a last answer at their limit on steps.
        self._is_at_limit = peek(data, "max_reached") is True
        self._settle("denied")

    def _on_response(self, event: str, data: dict[str, Any]) -> None:
        self._is_denied = self._has_called = False
        usage = peek(data, "usage")
        model = peek(data, "model")
        if isinstance(model, str):
            self.answered[str(peek(data, "provider")), model] = None
            if not peek(data, "purpose"):
                self._models[model] += 1
        self._add_reported(data, usage)
        # Attempts before the answer were billed, too.
        self._reported_by_loop.add(peek(data, "lost_usage"))
        if not peek(data, "purpose"):
            self.context_tokens = total_tokens(usage) or self.context_tokens
        self._unreported += not usage

    def _on_error(self, event: str, data: dict[str, Any]) -> None:
        # Billed, though there is no answer.
        self._add_reported(data, peek(data, "usage"))

        error = peek(data, "error")
        if peek(error, "type") == ContextLengthError.__name__ and not peek(data, "purpose"):
            # In most services' messages: "213000 tokens > 200000 maximum".
            numbers = _COUNT.findall(str(peek(error, "message")))
            counts = {int(number.replace(",", "")) for number in numbers}
            both = (max(counts), min(counts)) if len(counts) == 2 else (None, None)
            self.context_tokens, self.context_limit = both

    def _add_reported(self, data: dict[str, Any], usage: Any) -> None:
        self._reported_by_loop.add(usage)
        # The context reports its summaries, whatever the loop does.
        self._loop_reports = self._loop_reports or bool(usage and not peek(data, "purpose"))

    def _on_answered_error(self, event: str, data: dict[str, Any]) -> None:
        handled = sys.exception()  # these loops emit the event while they handle the error
        if not isinstance(handled, LLMError):
            handled = LLMError(str(peek(data, "error_message") or "the provider failed"))
        self.provider_error = handled

    def _on_llm_response(self, event: str, data: dict[str, Any]) -> None:
        self._is_denied = self._has_called = False
        usage = peek(data, "usage")
        self._reported_by_provider.add(usage)
        if not self._loop_reports:
            self.context_tokens = total_tokens(usage) or self.context_tokens

    def _on_tool_pre(self, event: str, data: dict[str, Any]) -> None:
        self._has_called = True
        name = str(peek(data, "tool_name") or "")
        tool = ToolUse(
            str(peek(data, "tool_call_id") or f"call-{len(self._tools) + 1}"),
            name,
            peek(data, "tool_input"),
        )
        tool.span = peek(data, "span_id")
        self._tools.append(tool)
        if (task := asyncio.current_task()) is not None:
            self._by_task[task] = tool.id
        self._running[tool.id] = (tool, time.monotonic())

    def _on_question(self, event: str, data: dict[str, Any]) -> None:
        self._questioned.add(self._key(data))

    def _on_decision(self, event: str, data: dict[str, Any]) -> None:
        key = self._key(data)
        self._questioned.discard(key)
        entry = self._running.get(key)
        if entry is not None:
            now = time.monotonic()  # the calls of an answer begin when all are decided on
            self._running = {call_id: (tool, now) for call_id, (tool, _) in self._running.items()}
            by, reason = peek(data, "decided_by"), peek(data, "reason")
            # Hooks of other authors may send only one of them, or none.
            entry[0].decision = one_line(_joined(by, reason), 200) or None
            entry[0].by_default = peek(data, "by_default") is True
            if event == APPROVAL_DENIED:
                # Some loops end such a call without an event.
                entry[0].reason = _joined("denied", reason or by)

    def _on_sandbox(self, event: str, data: dict[str, Any]) -> None:
        reason = str(peek(data, "reason") or "")
        for tool in self._calls_with(data):
            tool.sandbox = f"{tool.sandbox}; {reason}" if tool.sandbox else reason

    def _on_unanswered(self, event: str, data: dict[str, Any]) -> None:
        for tool in self._calls_with(data):
            tool.unanswered = str(peek(data, "reason") or "")

    def _calls_with(self, data: dict[str, Any]) -> list[ToolUse]:
        """The calls that an event of the running tool is about."""
        if span := peek(data, "span_id"):
            return [tool for tool in self._tools if tool.span == span]
        # Some loops give calls no spans; the event comes from the task of the call.
        current = self._running.get(self._key(data))
        return [] if current is None else [current[0]]

    def _on_tool_post(self, event: str, data: dict[str, Any]) -> None:
        result = result_in(data)
        error = None if has_succeeded(result) else read_field(result, "error")
        if read_field(error, "denied") is True:
            tool = self._end(data, "denied", str(read_field(error, "message") or "") or None)
            tool.by_tool = True
        else:
            self._end(data, "ok" if has_succeeded(result) else _to_outcome(error), None)

    def _on_tool_error(self, event: str, data: dict[str, Any]) -> None:
        error = peek(data, "error") or {}
        message = read_field(error, "message")
        self._end(data, _to_outcome(error), str(message) if message else None)

    def _on_unknown_tool(self, event: str, data: dict[str, Any]) -> None:
        # The other errors in this event are also those of a result.
        key = self._key(data)
        if key in self._running and peek(data, "error_type") == "tool_not_found":
            message = str(peek(data, "error_message") or "") or None
            self._end({**data, "tool_call_id": key}, "error", message)

    def _end(self, data: dict[str, Any], outcome: ToolOutcome, reason: str | None) -> ToolUse:
        key = self._key(data)
        if key not in self._running:
            # A call refused before `tool:pre`, for example of an unknown tool.
            self._on_tool_pre("tool:pre", data)
            key = self._tools[-1].id
        tool, started = self._running.pop(key)
        if (task := asyncio.current_task()) is not None:
            self._by_task[task] = key
        tool.outcome, tool.reason = outcome, reason
        milliseconds = peek(data, "duration_ms")
        measured = isinstance(milliseconds, (int, float))
        passed = milliseconds if measured else (time.monotonic() - started) * 1000
        tool.duration_ms = round(passed)
        return tool

    def _key(self, data: dict[str, Any]) -> str:
        call_id = peek(data, "tool_call_id")
        if call_id:
            return str(call_id)
        # Some loops send no ids, but all events of a call from one task.
        task = asyncio.current_task()
        key = None if task is None else self._by_task.get(task)
        name = peek(data, "tool_name")
        if key in self._running and name in (None, self._running[key][0].name):
            return key
        # The longest-running call of this tool.
        return next((key for key, (tool, _) in self._running.items() if tool.name == name), "")

    def _settle(self, outcome: Literal["denied", "interrupted"]) -> None:
        """Give calls that never ended their outcome: denied, or interrupted in a stopped turn."""
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
        if self._limit is not None:
            # A loop may have announced a request that the limit refused.
            self._requests = min(self._requests, self._turn_count)


def _to_outcome(error: Any) -> ToolOutcome:
    return _OUTCOMES.get(str(read_field(error, "type")), "error")


def _joined(*parts: Any) -> str:
    return ": ".join(str(part) for part in parts if part)


def _limit_in(reached: Any) -> LimitReached | None:
    keys = ("limit", "allowed", "spent", "model")
    name, allowed, spent, model = (read_field(reached, key) for key in keys)
    if not isinstance(name, str) or not isinstance(allowed, (int, float)):
        return None
    used = spent if isinstance(spent, (int, float)) else None
    return LimitReached(name, allowed, used, model if isinstance(model, str) else None)
