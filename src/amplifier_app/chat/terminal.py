"""What the conversation needs of a terminal: keyboard input and a line for what waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol, Self

from prompt_toolkit.completion import Completer

TYPING_PAUSE = 1.0
"""Seconds after the last key when a question may take over the keyboard."""


class State(Enum):
    """What the conversation does."""

    OPENING = "opening"
    """The session is being opened; lines are kept."""
    IDLE = "idle"
    """Waits for a prompt."""
    BUSY = "busy"
    """A turn or a command runs."""


class Sent(NamedTuple):
    """An input that was sent with Enter.

    Attributes:
        text: What was typed or pasted.
        is_recalled: Whether it is an earlier input, perhaps edited.
    """

    text: str
    is_recalled: bool = False


class Listener(Protocol):
    """Receives what the user does at the keyboard."""

    def on_input(self, sent: Sent) -> None:
        """Enter was pressed, possibly on an empty line."""
        ...

    def on_interrupt(self) -> None:
        """Ctrl-C or Esc was pressed while the conversation is busy."""
        ...

    def on_leave(self) -> None:
        """Ctrl-D was pressed on an empty line, or the terminal is gone."""
        ...

    def cycle_mode(self) -> None:
        """Shift-Tab was pressed."""
        ...


class ChatTerminal(Protocol):
    """A terminal with an input line that works during the whole conversation."""

    listener: Listener | None
    waiting: Callable[[], Sequence[str]]
    """Returns lines on messages that wait, shown above the input line."""
    status: Callable[[int], str]
    """Returns the status line for a number of columns, possibly with colours."""
    completer: Completer | None
    echoes: bool
    """Whether the terminal itself keeps what is typed on the screen."""

    @property
    def draft(self) -> str:
        """The text typed but not sent."""
        ...

    @draft.setter
    def draft(self, text: str) -> None: ...

    def set_state(self, state: State) -> None:
        """Change what the conversation does."""
        ...

    def refresh(self) -> None:
        """Show `waiting` and `status` again."""
        ...

    def interrupt(self) -> None:
        """Handle Ctrl-C."""
        ...

    def shown(self, text: str) -> str:
        """Return an input as the input line shows it."""
        ...

    def insert_folded(self, text: str, label: str) -> None:
        """Insert text into the input line, as lines of their own, shown as `[label]`."""
        ...

    def page(self, text: str) -> bool:
        """Show text that does not fit the screen in the pager; return whether it was shown."""
        ...

    def suspended(self) -> AbstractContextManager[None]:
        """Leave the terminal to another reader and writer for the duration."""
        ...

    async def typing_paused(self) -> None:
        """Wait until the user does not type."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: Any) -> None: ...
