"""Messages for a running turn, sent through the capability `session.steer` of its orchestrator."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Protocol

from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.turns.module_faults import read_messages
from amplifier_app.runtime.turns.turn import RunningTool
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_app.sessions.tool_calls import text_in
from amplifier_support.session_capabilities import STEER

logger = logging.getLogger(__name__)


class Steering:
    """Messages for the running turn.

    Third-party orchestrators may lack the capability, or have one that only accepts texts. Messages to
    these are kept here until they are in the conversation.

    Args:
        session: The session of the kernel.

    Attributes:
        sent: The messages that the orchestrator has accepted since the turn began.
        following: Messages to the turn before that belong after the prompt of the next one.
    """

    def __init__(self, session: Any) -> None:
        self.sent: list[str] = []
        self.following: list[str] = []
        self._session = session
        self._unlisted: list[str] = []  # sent, not yet in the conversation
        self._known: Counter[str] = Counter()  # the user messages in the conversation

    async def begin(self, prompt: str) -> list[str]:
        """Begin a turn; return the messages to send in it."""
        self.sent = []
        following, self.following = self.following, []
        self._known = await self._user_messages()
        self._known[prompt] += 1
        return following

    def send(self, text: str) -> bool:
        """Queue `text` for the running turn; False if its orchestrator does not accept it."""
        steer = STEER.of(self._session.coordinator)
        if not callable(steer):
            return False
        try:
            steer(text)
        # An orchestrator may raise anything; do not lose the text.
        except Exception:
            logger.warning("The orchestrator did not accept a message", exc_info=True)
            return False
        self.sent.append(text)
        if not all(callable(getattr(steer, method, None)) for method in ("waiting", "take_back")):
            self._unlisted.append(text)
        return True

    def waiting(self) -> list[str]:
        """Return the queued messages."""
        return _union(self._texts("waiting"), self._unlisted)

    async def take_arrived(self) -> list[str]:
        """Return the messages that have arrived in the conversation, of those the orchestrator does not list."""
        if not self._unlisted:
            return []
        now = await self._user_messages()
        new, self._known = now - self._known, now
        arrived: list[str] = []
        for text in [*self._unlisted]:
            if new[text] > 0:
                new[text] -= 1
                self._unlisted.remove(text)
                arrived.append(text)
        return arrived

    def take_back(self) -> list[str]:
        """Remove and return the messages that the finished turn did not use."""
        unlisted, self._unlisted = self._unlisted, []
        return _union(self._texts("take_back"), unlisted)

    async def _user_messages(self) -> Counter[str]:
        try:
            messages = await read_messages(self._session)
        # A context may raise anything; the turn reports it.
        except Exception:
            return Counter()
        users = (message for message in messages if message.get("role") == "user")
        return Counter(map(text_in, users))

    def _texts(self, method: str) -> list[str]:
        steer = STEER.of(self._session.coordinator)
        ask: Callable[[], Any] | None = getattr(steer, method, None)
        try:
            texts = ask() if callable(ask) else []
        # As above.
        except Exception:
            logger.warning("The orchestrator did not list its queued messages", exc_info=True)
            return []
        return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []


def _union(texts: list[str], others: list[str]) -> list[str]:
    """Return `texts` and the texts of `others` that are missing from it, counting repetitions."""
    others = [*others]
    for text in texts:
        if text in others:
            others.remove(text)
    return [*texts, *others]


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
        """True if a stop of the running turn was requested."""
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
                note = f"stopping after {about} · press again to kill it"
                self._renderer.notice(note, "info", "session")
        return immediate

    def request_after_step(self) -> None:
        """Request a stop after the running request or tool."""
        if self._coordinator.cancellation.request_graceful():
            self._emit(immediate=False)

    def _running_tool(self) -> RunningTool | None:
        """A tool call in progress, also of a sub-agent; calls of sub-agents do not count."""
        for sub_session in self._active:
            if (tool := sub_session.stopping._running_tool()) is not None:
                return tool
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
