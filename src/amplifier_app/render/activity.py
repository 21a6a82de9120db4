"""Lines of the live region: the to-do list, running tool calls and sub-agents."""

from __future__ import annotations

import time
from typing import Any

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.ansi import cells, clip, paint
from amplifier_app.render.finished_call import about_call, call_key
from amplifier_app.render.progress import spinner, with_hint
from amplifier_app.render.tool_calls import checklist_lines, todo_items
from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.observer import SubSessionFacts
from amplifier_app.runtime.turns.event_data import peek

MOST_LINES = 6
_TODO_LINES = 2

_ROOM_FOR_KEYS = 60
"""Cells of a line on which the keys are shown next to a text that is cut for them."""

_SHOWN_AFTER = 1.0
"""Seconds after which a line shows its duration."""


class _Call:
    """A running tool call, with its span if the orchestrator reports one."""

    def __init__(self, data: dict[str, Any], number: int | None = None) -> None:
        self.about = about_call(data, number)
        self.tool = peek(data, "tool_name")
        self.span = peek(data, "span_id")
        self.started = time.monotonic()
        self.output = ""


class _SubAgent:
    """A running sub-agent, with the tool call that waits for it, if known."""

    def __init__(self, facts: SubSessionFacts, call: str | None) -> None:
        self.agent = one_line(facts.agent, 40)
        self.about = one_line(describe.task(facts.agent, facts.instruction), 100)
        self.call = call
        self.doing = ""
        self.steps = 0
        self.started = time.monotonic()


class Activity:
    """The to-do list, the running tool calls and sub-agents of one session."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._waiting: dict[str, str] = {}  # sub-session → key of the waiting call
        self._agents: dict[str, _SubAgent] = {}
        self._todo: list[tuple[str, str]] = []

    def clear(self) -> None:
        """Remove all lines; the to-do list is kept while it has open items."""
        self._calls.clear()
        self._waiting.clear()
        self._agents.clear()
        if all(mark == "☑" for mark, _ in self._todo):
            self._todo = []

    # Tool calls

    def call_started(self, data: dict[str, Any], number: int | None = None) -> None:
        """Add the tool call of this event."""
        self._calls[call_key(data)] = _Call(data, number)

    def call_allowed(self, data: dict[str, Any]) -> None:
        """Count the time of tool calls from now: the calls of an answer begin when all are decided on."""
        if call_key(data) in self._calls:
            for call in self._calls.values():
                call.started = time.monotonic()

    def call_wrote(self, data: dict[str, Any]) -> None:
        """Record output of a tool call; tools of other authors do not know its span."""
        span, tool = peek(data, "span_id"), peek(data, "tool_name")
        lines = str(peek(data, "text") or "")[-2000:].rstrip().splitlines()
        writing = [
            call
            for call in self._calls.values()
            if (call.tool == tool if span is None else call.span == span)
        ]
        if lines and len(writing) == 1:
            writing[0].output = one_line(lines[-1], 200)

    def call_ended(self, data: dict[str, Any], *, failed: bool = False) -> float:
        """Remove the tool call of this event; return its seconds."""
        items = None if failed else todo_items(data)
        if items is not None:
            self._todo = items
        call = self._calls.pop(call_key(data), None)
        return 0.0 if call is None else time.monotonic() - call.started

    def calls(self) -> list[str]:
        """Return the descriptions of the running tool calls."""
        return [call.about for call in self._calls.values()]

    # Sub-agents

    def call_waits(self, data: dict[str, Any]) -> None:
        """Link a tool call to the sub-session it waits for: both share one line."""
        span, session_id = peek(data, "span_id"), str(peek(data, "sub_session_id"))
        for key, call in self._calls.items():
            if span is not None and call.span == span:
                self._waiting[session_id] = key

    def agent_started(self, facts: SubSessionFacts) -> None:
        """Add a sub-agent."""
        self._agents[facts.session_id] = _SubAgent(facts, self._waiting.get(facts.session_id))

    def agent_doing(self, session_id: str, what: str) -> None:
        """Record the tool call of a sub-agent, or its model call if `what` is empty."""
        agent = self._agents.get(session_id)
        if agent is not None:
            agent.doing = what
            agent.steps += bool(what)

    def agent_waits(self, session_id: str, why: str) -> None:
        """Record that a sub-agent waits before it repeats a request."""
        agent = self._agents.get(session_id)
        if agent is not None:
            agent.doing = why

    def agent_ended(self, session_id: str) -> None:
        """Remove a sub-agent."""
        self._waiting.pop(session_id, None)
        self._agents.pop(session_id, None)

    # Lines

    @property
    def is_busy(self) -> bool:
        """Whether a tool call or a sub-agent runs."""
        return bool(self._calls or self._agents)

    def lines(self, width: int, hint: str = "") -> list[str]:
        """Return at most `MOST_LINES` lines of at most `width` cells.

        These are the to-do list while it has open items, then one line for each tool call and for
        each sub-agent without a waiting call.

        Args:
            width: Cells per line.
            hint: Keys shown next to the first running call.
        """
        todo = self._todo_lines(width)
        by_call = {agent.call: agent for agent in self._agents.values() if agent.call is not None}
        running: list[list[str]] = []
        for key, call in self._calls.items():
            agent = by_call.get(key)
            keys = "" if running else hint
            head = _head_of_agent(agent, width, keys) if agent else _head_of_call(call, width, keys)
            below = [paint(clip(f"    {call.output}", width), "dim")] if call.output else []
            running.append([head, *below])
        for agent in self._agents.values():
            if agent.call not in self._calls:
                running.append([_head_of_agent(agent, width, "" if running else hint)])
        return [*todo, *_fitting(running, MOST_LINES - len(todo))]

    def _todo_lines(self, width: int) -> list[str]:
        done = sum(mark == "☑" for mark, _ in self._todo)
        if done == len(self._todo):
            return []
        count = f"{done}/{len(self._todo)}"
        first, *rest = checklist_lines(self._todo, width - len(count) - 3, _TODO_LINES)
        return [with_hint(f" {first}", count, width), *(f" {line}" for line in rest)]


def _fitting(running: list[list[str]], max_lines: int) -> list[str]:
    """Return the lines of running calls; with many, without output and with the rest counted."""
    lines = [line for lines in running for line in lines]
    if len(lines) <= max_lines:
        return lines
    heads = [lines[0] for lines in running]
    if len(heads) <= max_lines:
        return heads
    return [*heads[: max_lines - 1], paint(f"  … {len(heads) - max_lines + 1} more", "dim")]


def _head_of_call(call: _Call, width: int, hint: str) -> str:
    return _running_line(call.about, call.started, width, hint)


def _head_of_agent(agent: _SubAgent, width: int, hint: str) -> str:
    if not agent.steps and not agent.doing:
        return _running_line(agent.about, agent.started, width, hint)
    doing = f" → {agent.doing}" if agent.doing else ""
    text = f"{agent.agent} · {describe.count(agent.steps, 'step')}{doing}"
    return _running_line(text, agent.started, width, hint)


def _running_line(text: str, started: float, width: int, hint: str) -> str:
    """Return a line whose text is cut before its duration."""
    seconds = time.monotonic() - started
    duration = f" · {describe.duration(seconds)}" if seconds > _SHOWN_AFTER else ""
    keys = cells(hint) + 2 if hint and width >= _ROOM_FOR_KEYS else 0
    text = clip(text, max(width - len(duration) - 2 - keys, 8))
    return with_hint(f"{spinner()} {text}{duration}", hint, width)
