"""Stop the running turn of a session, and with it those of its sub-agents."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.turns.turn import RunningTool
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder


class Stoppable(Protocol):
    """A session with a running turn."""

    @property
    def stopping(self) -> Stopping: ...


class Stopping:
    """The requests to stop turns of one session.

    Args:
        coordinator: The coordinator of the session.
        recorder: Records what its turns do.
        renderer: Shows the session.
        active: Its sub-sessions with a running turn.
    """

    def __init__(
        self,
        coordinator: Any,
        recorder: TurnRecorder,
        renderer: Renderer,
        active: Collection[Stoppable],
    ) -> None:
        self._coordinator = coordinator
        self._recorder = recorder
        self._renderer = renderer
        self._active = active
        self._emitting: set[asyncio.Task[Any]] = set()

    @property
    def is_requested(self) -> bool:
        """Whether a stop of the running turn was requested."""
        return self._coordinator.cancellation.is_cancelled

    def request(self, *, immediate: bool) -> bool:
        """Request a stop: after the running tool, or at once if none runs.

        Args:
            immediate: Stop at once in any case; the tool may have taken effect.

        Returns:
            Whether to stop at once.
        """
        running = None if immediate else self._running_tool()
        immediate = running is None
        token = self._coordinator.cancellation
        changed = token.request_immediate() if immediate else token.request_graceful()
        if changed:
            self._emit(immediate)
            if running is not None:
                about = f"`{describe.call(running.name, running.input)}` ({describe.duration(running.seconds)})"
                note = f"stopping after {about} · again: kill it now"
                self._renderer.notice(note, "info", "session")
        return immediate

    def request_after_step(self) -> None:
        """Request a stop after the running request or tool."""
        if self._coordinator.cancellation.request_graceful():
            self._emit(immediate=False)

    def _running_tool(self) -> RunningTool | None:
        """A tool call in progress, also of a sub-agent; calls of sub-agents do not count."""
        for sub_session in self._active:
            if (found := sub_session.stopping._running_tool()) is not None:
                return found
        running = self._recorder.running
        return running[-1] if len(running) > len(self._active) else None

    def _emit(self, immediate: bool) -> None:
        """Emit `cancel:requested` in this session and in its active sub-sessions."""
        event = self._coordinator.hooks.emit("cancel:requested", {"immediate": immediate})
        task = asyncio.get_running_loop().create_task(event)
        self._emitting.add(task)
        task.add_done_callback(self._emitting.discard)
        for sub_session in self._active:
            sub_session.stopping._emit(immediate)
