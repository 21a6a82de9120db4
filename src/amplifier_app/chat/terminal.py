"""The keyboard and the lines of a chat that draws nothing: for `--plain`, dumb terminals and screen readers.

The terminal itself edits the lines. A line that ends with a backslash continues on the next one.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import select
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol, Self

from prompt_toolkit.completion import Completer

from amplifier_app.base.errors import AppError
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import Output
from amplifier_app.chat.slash.registry import is_command
from amplifier_app.chat.terminal_modes import KeyMode
from amplifier_support.named_tuple import NamedTuple

TYPING_PAUSE = 1.0
"""Seconds after the last key when a question may take over the keyboard."""


class State(Enum):
    """The activity of the conversation."""

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

    def on_background(self) -> None:
        """Ctrl-B was pressed on an empty line while the conversation is busy."""
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
    """True if the terminal itself keeps what is typed on the screen."""

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

    def edit_text(self, text: str) -> str:
        """Return text after it was edited in the user's editor.

        Raises:
            AppError: There is no editor, or it failed.
        """
        ...

    def suspended(self) -> AbstractContextManager[None]:
        """Leave the terminal to another reader and writer for the duration."""
        ...


_PROMPT = "> "
_PASTED_SECONDS = 0.03
"""Lines less than this apart were pasted."""


class PlainTerminal:
    """A `ChatTerminal` that reads whole lines; use it as an async context manager.

    Args:
        output: The terminal to write to.
    """

    echoes = True

    def __init__(self, output: Output) -> None:
        self._output = output
        self.listener: Listener | None = None
        self.waiting: Callable[[], Sequence[str]] = tuple
        self.status: Callable[[int], str] = lambda width: ""
        self.completer: Completer | None = None
        self._state = State.OPENING
        self.draft = ""  # text that was not sent; Enter on an empty line sends it
        self._begun = ""  # lines before the one being typed
        self._shown_waiting = 0
        self._interrupted = False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._reading = False
        self._last_line = -_PASTED_SECONDS

    def set_state(self, state: State) -> None:
        self._state = state
        if self.listener is not None:
            self._set_reading(True)
        if state is State.IDLE:
            self._ask()

    def refresh(self) -> None:
        waiting = self.waiting()
        new = waiting[self._shown_waiting :]
        self._shown_waiting = len(waiting)
        if new:
            self._output.write(f"[{new[-1].strip().partition(':')[0]}]\n")

    def shown(self, text: str) -> str:
        return text

    def insert_folded(self, text: str, label: str) -> None:
        self.draft = self._after_draft(text)

    def page(self, text: str) -> bool:
        return False

    def edit_text(self, text: str) -> str:
        raise AppError("the editor needs a terminal that is drawn on", hint="Run without --plain.")

    def interrupt(self) -> None:
        """Handle Ctrl-C: stop what runs, discard the line, or leave when pressed twice."""
        if self.listener is None:
            return
        if self._state is State.BUSY:
            self.listener.on_interrupt()
        elif self._begun or self.draft or not self._interrupted:
            self._begun = self.draft = ""
            self._interrupted = True
            self._output.write("\n(Ctrl-C again to leave)\n")
            self._ask()
        else:
            self.listener.on_leave()

    @contextlib.contextmanager
    def suspended(self) -> Generator[None]:
        was_reading = self._reading
        self._set_reading(False)
        with KeyMode(0) as keys:
            # A line begun before a question is not an answer to it.
            self._keep_begun(keys)
            try:
                yield
            finally:
                self._set_reading(was_reading)
        if self._begun:
            self._output.write(f"{_PROMPT}{for_terminal(self._begun)}")

    async def typing_paused(self) -> None:
        """Wait while a line is being typed; what was typed of it is kept, see `suspended`."""
        while True:
            with KeyMode(0) as keys:
                pass
            if not self._keep_begun(keys):
                return
            await asyncio.sleep(TYPING_PAUSE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._set_reading(False)

    def _keep_begun(self, keys: KeyMode) -> bool:
        """Keep the keys of a line that was not sent yet; return whether there were any."""
        self._begun += keys.typed_ahead.decode("utf-8", "replace").replace("\r", "\n")
        return bool(keys.typed_ahead)

    def _ask(self) -> None:
        if self.draft:
            state = "sent yet (Enter sends it, with what you type"
            if is_command(self.draft):
                state = "run yet (Enter runs it"
            draft = for_terminal(self.draft)
            self._output.write(f"Not {state}; Ctrl-C discards it):\n{draft}\n")
        self._output.write(_PROMPT)

    def _after_draft(self, text: str) -> str:
        gap = "\n" if self.draft and text and not self.draft.endswith("\n") else ""
        return f"{self.draft}{gap}{text}"

    def _set_reading(self, reading: bool) -> None:
        if reading is self._reading:
            return
        self._reading = reading
        loop = asyncio.get_running_loop()
        if reading:
            loop.add_reader(0, self._read)
        else:
            loop.remove_reader(0)

    def _is_pasted(self) -> bool:
        """Return True if other lines came right before the last one, or wait behind it."""
        before, self._last_line = self._last_line, time.monotonic()
        is_followed = bool(select.select([0], [], [], 0)[0])
        return is_followed or self._last_line - before < _PASTED_SECONDS

    def _read(self) -> None:
        if self.listener is None:
            # The chat is over: what is typed from now on is for whoever reads next.
            self._set_reading(False)
            return
        try:
            # Ctrl-C empties the terminal's queue; reading would then wait for the next line.
            if not select.select([0], [], [], 0)[0]:
                return
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        except OSError:  # the terminal is gone
            data = b""
        self._interrupted = False
        if not data:
            # Ctrl-D can be pressed again; a terminal that is gone is always at its end.
            self._set_reading(os.isatty(0))
            self.listener.on_leave()
            return
        line = self._begun + self._decode(data).rstrip("\n")
        if line.endswith("\\"):
            self._begun = line[:-1] + "\n"
            return
        self._begun = ""
        if self._is_pasted() and (not line or line.startswith(("!", "/"))):
            # A line of pasted text is not a command, although Enter sends it.
            self.draft = self._after_draft(line)
            self._ask()
            return
        if not line or not (is_command(line) or is_command(self.draft)):
            line, self.draft = self._after_draft(line), ""
        self.listener.on_input(Sent(line))
