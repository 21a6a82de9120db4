"""Tool calls as lines where nothing is redrawn: how each ended, and that a long one has started."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from amplifier_app.render.finished_call import FinishedCall, about_call, call_key, seconds_of
from amplifier_app.render.progress import footer
from amplifier_app.runtime.describe import changed_files
from amplifier_app.runtime.turns.event_data import EventHandler, peek
from amplifier_app.runtime.turns.turn import TurnResult

LONG_CALL_SECONDS = 2.0


class _Running(NamedTuple):
    about: str
    started: float
    timer: asyncio.TimerHandle


class CallLines:
    """Writes a line for each tool call of a session.

    Args:
        write: Shows a line.
        number_of: Returns the number of a call by its id.
        limit: Maximum length of what is quoted of a call, in characters.
    """

    def __init__(
        self, write: Callable[[str], None], number_of: Callable[[str], int | None], limit: int
    ) -> None:
        self._write = write
        self._number_of = number_of
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
        call = FinishedCall(data, seconds_of(data, waited))
        if not call.has_failed:
            self._changed.update(changed_files(data))
        self._write(f"{self._about(data)}: {call.summary(self._limit)}")

    def agent_changed(self, agent: str, data: dict[str, Any]) -> None:
        """Report a change of a file by a sub-agent."""
        call = FinishedCall(data, seconds_of(data, 0.0), agent=agent)
        self._changed.update(changed_files(data))
        self._write(f"{call.about(min(self._limit, 100))}: {call.summary(self._limit)}")

    def _about(self, data: dict[str, Any]) -> str:
        call_id = peek(data, "tool_call_id")
        number = self._number_of(str(call_id)) if call_id else None
        return about_call(data, number, min(self._limit, 100))
