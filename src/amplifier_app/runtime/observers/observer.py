"""The observer protocol: a renderer follows a session, its turns and its events."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.runtime.turns.turn import EventHandler, SubSession, TurnResult, peek
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import lazy_pattern

if TYPE_CHECKING:
    from amplifier_app.runtime.checks import CheckResult

Level = Literal["info", "warning", "error"]

NOTE_ON_TERMINAL = 200
"""`Renderer.longest_note` where notices are lines of a terminal."""

_RETRY = lazy_pattern(r"\bretr(?:y|ies|ying)\b", re.IGNORECASE)

FIRST = -1_000_000
"""Priority of handlers that see an event before other handlers deny or change it."""

LAST = 1_000_000
"""Priority of handlers that see an event after all others, for example redacted."""

BEFORE_EVENTS = ("tool:pre", "provider:request")
"""Events a renderer sees first, so that a call is shown even if it is then denied. It sees all
other events last."""


class SessionFacts(NamedTuple):
    """Facts about an open session."""

    session_id: str
    saved: bool
    resumed: bool
    working_dir: str
    profile: str
    provider: str
    model: str | None
    tools: tuple[str, ...]


class SubSessionFacts(NamedTuple):
    """Facts about a sub-session that starts its turn.

    Attributes:
        session_id: Its id.
        parent_id: The session that delegated the task.
        agent: The agent of the plan.
        depth: The number of sessions above it.
        resumed: Whether it continues an earlier sub-session.
        instruction: Its task.
    """

    session_id: str
    parent_id: str
    agent: str
    depth: int
    resumed: bool
    instruction: str


class RetryReports:
    """Shows a retry once if a provider both logs it and emits an event.

    Attributes:
        is_muted: Whether events are not shown: no one waits for the request.
    """

    def __init__(self) -> None:
        self._logged = self._emitted = ""
        self.is_muted = False

    def is_new_log(self, message: str) -> bool:
        """Return True for a log message to show."""
        if not _RETRY.search(message):
            return True
        if self._emitted and self._emitted in message:
            self._emitted = ""
            return False
        self._logged = message
        return True

    def is_new_event(self, data: dict[str, Any]) -> bool:
        """Return True for a `provider:retry` event to show."""
        cause = str(peek(data, "error_message") or peek(data, "error_type") or "")
        logged, self._logged = self._logged, ""
        if cause and cause in logged:
            return False
        self._emitted = cause
        return not self.is_muted


async def _no_wait() -> None:
    """Return at once."""


class Renderer:
    """Base class of renderers; shows nothing itself.

    Attributes:
        on_failure: Called when the output can no longer be written, to stop the turn.
        while_paused: Context to enter while the terminal is released.
        typing_paused: Waits until the user does not type, so that no key answers a question that
            was not there when it was pressed.
        visibility: Which blocks of an answer are shown.
        verbose: Whether results of tools are shown in full.
        retries: The retries shown so far.
        approval_keys: The keys for questions about tool calls that replace the usual ones.
        signals: Whether to set the title of the window, link files and ring after long turns.
        call_number: Returns the number of a tool call in the session, by the call's id.
        saved_as: The short id of the saved session; None if it is not saved.
        draws_retries: Whether it shows the retries of sub-agents without a notice each.
        folds_thinking: Whether it folds thinking to one line unless it is requested.
        longest_note: Maximum length of quoted text in a notice, in characters.
        is_for_people: Whether only a person reads it, who answers questions, not a program.
        takes_prints: Whether `printed` shows what modules print; else it goes to stderr as it is.
        has_open_line: Whether a module has printed a part of a line to stderr.
        other_display: A module that may show the same, until the user knows.
    """

    longest_note = 10_000
    folds_thinking = False
    draws_retries = False
    is_for_people = False
    takes_prints = False
    has_open_line = False

    def __init__(self) -> None:
        self.on_failure: Callable[[], Any] = lambda: None
        self.while_paused: Callable[[], AbstractContextManager[None]] = nullcontext
        self.typing_paused: Callable[[], Awaitable[None]] = _no_wait
        self.approval_keys: Mapping[str, str] = {}
        self.signals = False
        self.call_number: Callable[[str], int | None] = lambda call_id: None
        self.saved_as: str | None = None
        self.visibility = Visibility()
        self.verbose = False
        self.retries = RetryReports()
        self.other_display: str | None = None

    @property
    def folded_thinking(self) -> str:
        """The thinking of the running or last turn that was folded."""
        return ""

    def handlers(self) -> dict[str, EventHandler]:
        """Return the handlers by event name. Handlers are synchronous and must not raise."""
        return {}

    def session_opened(self, facts: SessionFacts) -> None:
        """A session is open; no prompt has been sent yet."""

    def turn_started(self) -> None:
        """A prompt is about to be sent."""

    def turn_ended(self, result: TurnResult) -> None:
        """The turn has ended, in whatever way."""

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        """A sub-agent starts its turn."""

    def sub_session_doing(self, session_id: str, what: str) -> None:
        """A sub-agent runs a tool call, or calls its model if `what` is empty."""

    def sub_session_retries(self, session_id: str, data: dict[str, Any]) -> None:
        """A sub-agent waits before it repeats a request; `data` is that of `provider:retry`."""

    def sub_session_changed(self, agent: str, data: dict[str, Any], *, was_seen: bool) -> None:
        """A tool call of a sub-agent has changed a file; `was_seen` if the user has approved the change."""

    def sub_session_ended(self, ended: SubSession) -> None:
        """The turn of a sub-agent has ended, in whatever way."""

    def accepted(self, response: str) -> None:
        """The answer is final: it meets the requirements of the run."""

    def check_ended(self, result: CheckResult) -> None:
        """A check of the answer has run."""
        if result.passed:
            self.notice(f"check {result.name!r} passed", "info", "check")

    def notice(self, message: str, level: Level, source: str) -> None:
        """Show a message that is not part of the answer."""

    def printed(self, line: str) -> None:
        """Show a line that a module has printed, perhaps with colours."""

    def reply(self, content: Any) -> None:
        """Show the output of a chat command: text, or a Rich renderable."""

    def paused(self) -> AbstractContextManager[None]:
        """Release the terminal to another reader and writer for the duration."""
        return self.while_paused()

    def line_entered(self) -> None:
        """The terminal itself has shown a line that was typed, and its Enter."""

    def message_sent(self, text: str) -> None:
        """A prompt, a command or a line typed during the turn is sent now."""

    def close(self) -> None:
        """Restore the terminal; nothing follows."""


class Display:
    """An `amplifier_core.display.DisplaySystem` that passes messages of modules to a renderer."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def show_message(self, message: str, level: Level, source: str = "hook") -> None:
        self._renderer.notice(message, level, source)
