"""Lines of the live region: running tool calls and sub-agents."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from rich.text import Text

from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.observer import SubSessionFacts
from amplifier_app.runtime.turn import peek

_SHOWN_AFTER = 1.0
"""Seconds after which a line shows its duration."""


class Line(NamedTuple):
    """A running tool call or sub-agent, with its last line of output below."""

    text: str
    below: str = ""


class _Call:
    """A running tool call, with its span if the orchestrator reports one."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.about = _about(data)
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
    """The running tool calls and sub-agents of one session."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._waiting: dict[str, str] = {}  # sub-session → key of the waiting call
        self._agents: dict[str, _SubAgent] = {}

    def clear(self) -> None:
        """Remove all lines."""
        self._calls.clear()
        self._waiting.clear()
        self._agents.clear()

    # Tool calls

    def call_started(self, data: dict[str, Any]) -> None:
        """Add the tool call of this event."""
        self._calls[_key(data)] = _Call(data)

    def call_wrote(self, data: dict[str, Any]) -> None:
        """Record output of a tool call."""
        span = peek(data, "span_id")
        lines = str(peek(data, "text") or "")[-2000:].rstrip().splitlines()
        for call in self._calls.values():
            if lines and span is not None and call.span == span:
                call.output = one_line(lines[-1], 200)

    def call_ended(self, data: dict[str, Any]) -> tuple[str, float]:
        """Remove the tool call of this event; return its description and seconds."""
        call = self._calls.pop(_key(data), None) or _Call(data)
        return call.about, time.monotonic() - call.started

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

    def agent_ended(self, session_id: str) -> None:
        """Remove a sub-agent."""
        self._waiting.pop(session_id, None)
        self._agents.pop(session_id, None)

    # Lines

    def lines(self) -> list[Line]:
        """Return one line for each tool call and for each sub-agent without a waiting call."""
        by_call = {agent.call: agent for agent in self._agents.values() if agent.call is not None}
        found: list[Line] = []
        for key, call in self._calls.items():
            agent = by_call.get(key)
            line = Line(_timed(call.about, call.started), call.output)
            found.append(line if agent is None else _of_agent(agent))
        alone = [agent for agent in self._agents.values() if agent.call not in self._calls]
        return [*found, *map(_of_agent, alone)]


def _about(data: dict[str, Any]) -> str:
    return f"{describe.tool_name(data)} {describe.tool_input(data)}".strip()


def _key(data: dict[str, Any]) -> str:
    return str(peek(data, "tool_call_id") or peek(data, "tool_name"))


def _of_agent(agent: _SubAgent) -> Line:
    if not agent.steps:
        return Line(_timed(agent.about, agent.started))
    doing = f" → {agent.doing}" if agent.doing else ""
    steps = "1 step" if agent.steps == 1 else f"{agent.steps} steps"
    return Line(_timed(f"{agent.agent} · {steps}{doing}", agent.started))


def _timed(text: str, started: float) -> str:
    seconds = time.monotonic() - started
    return f"{text} · {describe.duration(seconds)}" if seconds > _SHOWN_AFTER else text


def dim(text: str) -> Text:
    """Return dim text that is cut at the end of the line."""
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
