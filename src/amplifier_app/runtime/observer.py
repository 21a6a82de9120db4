"""What every renderer is: told about a session, its turns and events; shows what it is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

from amplifier_app.runtime.turn import EventHandler, SubSession, TurnResult, peek
from amplifier_app.runtime.visibility import Visibility

Level = Literal["info", "warning", "error"]

NOTE_ON_TERMINAL = 200
"""`Renderer.longest_note` where notices are lines of a terminal."""

_RETRY = re.compile(r"\bretr(?:y|ies|ying)\b", re.IGNORECASE)

FIRST = -1_000_000
"""Priority of handlers that see an event before anybody denies or changes it."""

LAST = 1_000_000
"""Priority of handlers that see an event as the others left it (redacted, for instance)."""

BEFORE_EVENTS = ("tool:pre", "provider:request")
"""Events a renderer sees first: what begins is shown even when it is then denied. All others it
sees last."""


class SessionFacts(NamedTuple):
    """What is worth saying about an open session."""

    session_id: str
    saved: bool
    resumed: bool
    working_dir: str
    profile: str
    provider: str
    model: str | None
    tools: tuple[str, ...]


class SubSessionFacts(NamedTuple):
    """What is worth saying about a sub-session that begins its turn.

    Attributes:
        session_id: Its id.
        parent_id: The session that gave it its task.
        agent: The agent of the plan.
        depth: How many sessions there are above it.
        resumed: Whether it goes on with what it did before.
        instruction: Its task.
    """

    session_id: str
    parent_id: str
    agent: str
    depth: int
    resumed: bool
    instruction: str


class Waiting(NamedTuple):
    """A line that was sent and that nothing has come of yet.

    Attributes:
        state: What it waits for, in a word or three.
        text: What it says.
    """

    state: str
    text: str


class Typed(NamedTuple):
    """What the user has typed while a turn runs.

    Attributes:
        line: The line that is being typed.
        cursor: Where in it the next character goes.
        waiting: The lines sent before, in order.
    """

    line: str = ""
    cursor: int = 0
    waiting: tuple[Waiting, ...] = ()


NOTHING_TYPED = Typed()


class RetryReports:
    """Tells a retry that a provider both logs and emits as an event from two retries."""

    def __init__(self) -> None:
        self._logged = ""
        self._emitted = ""

    def is_new_log(self, message: str) -> bool:
        """Whether what a module logged is to be shown."""
        if not _RETRY.search(message):
            return True
        if self._emitted and self._emitted in message:
            self._emitted = ""
            return False
        self._logged = message
        return True

    def is_new_event(self, data: dict[str, Any]) -> bool:
        """Whether a `provider:retry` is to be shown."""
        cause = str(peek(data, "error_message") or peek(data, "error_type") or "")
        logged, self._logged = self._logged, ""
        if cause and cause in logged:
            return False
        self._emitted = cause
        return True


class Renderer:
    """Base of all renderers; by itself it shows nothing.

    Attributes:
        on_failure: Called once the output cannot be written any more, to stop the turn.
        while_paused: Entered while somebody else has the terminal.
        visibility: Which blocks of an answer are shown.
        retries: Which retries were shown already.
        longest_note: Characters after which what a notice quotes is cut.
    """

    longest_note = 10_000

    def __init__(self) -> None:
        self.on_failure: Callable[[], Any] = lambda: None
        self.while_paused: Callable[[], AbstractContextManager[None]] = nullcontext
        self.visibility = Visibility()
        self.retries = RetryReports()

    def handlers(self) -> dict[str, EventHandler]:
        """What to call on which event. Handlers are synchronous and must not raise."""
        return {}

    def session_opened(self, facts: SessionFacts) -> None:
        """A session is open, nothing has been asked yet."""

    def turn_started(self) -> None:
        """A prompt is about to be sent."""

    def turn_ended(self, result: TurnResult) -> None:
        """The turn is over, whatever way."""

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        """A sub-agent begins its turn."""

    def sub_session_doing(self, session_id: str, what: str) -> None:
        """What a sub-agent does now: a tool call, or nothing while its model is asked."""

    def sub_session_ended(self, ended: SubSession) -> None:
        """The turn of a sub-agent is over, whatever way."""

    def notice(self, message: str, level: Level, source: str) -> None:
        """Something to tell the user that is not part of the answer."""

    def paused(self) -> AbstractContextManager[None]:
        """While entered, somebody else reads from and writes to the terminal."""
        return self.while_paused()

    def typed(self, typed: Typed) -> None:
        """What the user types during the turn has changed."""

    def said(self, text: str) -> None:
        """What the user typed during a turn is told to the model now."""

    def close(self) -> None:
        """Nothing more will come; leave the terminal as it was found."""


class Display:
    """An `amplifier_core.display.DisplaySystem`: the modules' messages go to a renderer."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def show_message(self, message: str, level: Level, source: str = "hook") -> None:
        self._renderer.notice(message, level, source)
