"""Tool calls as lines where nothing is redrawn: how each ended, and that a long one has started; and the usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.describe import changed_files
from amplifier_app.runtime.turns.turn import (
    EventHandler,
    TurnResult,
    has_succeeded,
    input_in,
    peek,
    result_in,
)
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.named_tuple import NamedTuple

_MAX_RESULT = 1_000_000


class FinishedCall(NamedTuple):
    """A tool call that has ended.

    Attributes:
        data: The data of its `tool:post` or `tool:error` event.
        seconds: How long it took.
        number: Its number in the session; None if unknown.
        agent: The sub-agent that made it; empty for the session itself.
    """

    data: dict[str, Any]
    seconds: float
    number: int | None = None
    agent: str = ""

    @property
    def input(self) -> Mapping[str, Any]:
        """Its input; empty if it is not a mapping."""
        return to_mapping(input_in(self.data))

    @property
    def error(self) -> Any:
        """The error of a call that raised one or was refused."""
        return peek(self.data, "error")

    @property
    def has_failed(self) -> bool:
        """True if it failed or was refused."""
        return self.error is not None or not has_succeeded(self._result)

    @property
    def is_denied(self) -> bool:
        """True if it was refused."""
        return peek(self.error, "type") == "Denied"

    @property
    def was_skipped(self) -> bool:
        """True if it was not run because the prompt was stopped or a budget was used up."""
        return describe.was_skipped(describe.error_text(self.data, 100))

    @property
    def output(self) -> str:
        """Its result as text, without control characters."""
        if self.error is not None:
            return for_terminal(describe.error_text(self.data, 10_000))
        return for_terminal(describe.shown_result(self.data)[:_MAX_RESULT])

    @property
    def _result(self) -> Any:
        return result_in(self.data)

    def about(self, limit: int = 400) -> str:
        """The call in a few words: `7 bash pytest -q`, `fixer: edit_file parse.py`."""
        about = about_call(self.data, self.number, limit)
        return f"{one_line(self.agent, 40)}: {about}" if self.agent else about

    def summary(self, limit: int = 200) -> str:
        """Describe its end in one line: `ok, 8.1 s`, `failed, 12 ms: no such file`."""
        took = describe.duration(self.seconds)
        if not self.has_failed:
            return f"ok, {took}"
        if self.error is not None:
            problem = describe.error_text(self.data, limit)
            return problem if self.is_denied or self.was_skipped else f"failed, {took}: {problem}"
        lines = [line for line in self.output.splitlines() if line.strip()]
        error = read_field(self._result, "error")
        message = one_line(str(peek(error, "message") or ""), limit)
        # A command says in its last lines what is wrong, then follows how it ended.
        last_line = lines[-2] if len(lines) > 1 and lines[-1] == f"[{message}]" else ""
        last_line = last_line or ("" if message else lines[0] if lines else "")
        details = one_line(": ".join(filter(None, (message, last_line))), limit)
        return f"failed, {took}: {details}" if details else f"failed, {took}"


def call_key(data: dict[str, Any]) -> str:
    """Return the key that the events of one call share: its id, or else the name of its tool."""
    return str(peek(data, "tool_call_id") or peek(data, "tool_name"))


def measure_seconds(data: dict[str, Any], waited: float) -> float:
    """Return how long a call took: as reported, or else as measured here."""
    milliseconds = peek(data, "duration_ms")
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else waited


def about_call(data: dict[str, Any], number: int | None = None, limit: int = 400) -> str:
    """Describe a call in a few words: `7 bash pytest -q`."""
    words = ("" if number is None else str(number), describe.tool_name(data))
    return " ".join(filter(None, (*words, describe.tool_input(data, limit))))


LONG_CALL_SECONDS = 2.0


class _Running(NamedTuple):
    about: str
    started: float
    timer: asyncio.TimerHandle


class CallLines:
    """Writes a line for each tool call of a session.

    Args:
        write: Shows a line.
        read_number: Returns the number of a call by its id.
        limit: Maximum length of what is quoted of a call, in characters.
    """

    def __init__(
        self, write: Callable[[str], None], read_number: Callable[[str], int | None], limit: int
    ) -> None:
        self._write = write
        self._find_number = read_number
        self._limit = limit
        self._running: dict[str, _Running] = {}
        self.turn_started()

    def handlers(self) -> dict[str, EventHandler]:
        """Return the handlers by event name."""
        return {
            "tool:pre": self._on_start,
            "tool:post": self._on_end,
            "tool:error": self._on_end,
            # The calls of an answer begin when all are decided on.
            "approval:required": lambda event, data: self._hold(),
            "approval:granted": lambda event, data: self._begin_again(),
            "approval:denied": lambda event, data: self._begin_again(),
        }

    def turn_started(self) -> None:
        """Begin to count the changed files and the time."""
        self._changed: set[str] = set()
        self._began = time.monotonic()

    def turn_ended(self) -> None:
        """Report the calls that were interrupted."""
        for call in self._running.values():
            call.timer.cancel()
            self._write(f"{call.about}: interrupted")
        self._running.clear()

    def write_footer(self, result: TurnResult) -> None:
        """Write what the turn has come to, if it had a step."""
        if result.steps:
            self._write(footer(result, time.monotonic() - self._began, len(self._changed)))

    def _on_start(self, event: str, data: dict[str, Any]) -> None:
        self._running[call_key(data)] = self._begin(self._about(data))

    def _begin(self, about: str) -> _Running:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LONG_CALL_SECONDS, self._write, f"{about}: running")
        return _Running(about, time.monotonic(), timer)

    def _hold(self) -> None:
        for call in self._running.values():
            call.timer.cancel()

    def _begin_again(self) -> None:
        self._hold()
        self._running = {key: self._begin(call.about) for key, call in self._running.items()}

    def _on_end(self, event: str, data: dict[str, Any]) -> None:
        running = self._running.pop(call_key(data), None)
        waited = 0.0
        if running is not None:
            running.timer.cancel()
            waited = time.monotonic() - running.started
        call = FinishedCall(data, measure_seconds(data, waited))
        if not call.has_failed:
            self._changed.update(changed_files(data))
        self._write(f"{self._about(data)}: {call.summary(self._limit)}")

    def agent_changed(self, agent: str, data: dict[str, Any]) -> None:
        """Report a change of a file by a sub-agent."""
        call = FinishedCall(data, measure_seconds(data, 0.0), agent=agent)
        self._changed.update(changed_files(data))
        self._write(f"{call.about(min(self._limit, 100))}: {call.summary(self._limit)}")

    def _about(self, data: dict[str, Any]) -> str:
        call_id = peek(data, "tool_call_id")
        number = self._find_number(str(call_id)) if call_id else None
        return about_call(data, number, min(self._limit, 100))


def join_parts(*parts: str) -> str:
    """Join the parts that are not empty with ` · `."""
    return " · ".join(filter(None, parts))


def footer(
    result: TurnResult, seconds: float, changed: int, *, commands: Iterable[str] = ()
) -> str:
    """Summarize a turn: `5 steps · 41 s · 38.2k in (91 % cached) · 1.9k out · $0.043`.

    Args:
        result: The turn.
        seconds: How long it took to be shown.
        changed: Number of files it changed.
        commands: Slash commands for these files.
    """
    read, written = result.usage.get("input_tokens", 0), result.usage.get("output_tokens", 0)
    cached = result.usage.get("cache_read_tokens") or 0
    share = f" ({round(100 * cached / read)} % cached)" if read and cached else ""
    files = f"{describe.count(changed, 'file')} changed {' '.join(commands)}".rstrip()
    parts = [
        describe.count(result.steps, "step") if result.steps else "",
        describe.duration(seconds if result.seconds is None else result.seconds),
        f"{describe.tokens(read)} in{share}" if read else "",
        f"{describe.tokens(written)} out" if written else "",
        _dollars(result.cost, is_estimate=bool(result.usage.get("estimated_calls"))),
        files if changed else "",
    ]
    return join_parts(*parts)


def _dollars(cost: Decimal | None, *, is_estimate: bool) -> str:
    if not cost:
        return ""
    amount = (
        f"${cost:.2f}" if cost >= 1 else f"${cost:.3f}" if cost >= Decimal("0.0005") else "<$0.001"
    )
    return f"~{amount}" if is_estimate else amount
