"""Choose from a list on the terminal: type to filter, Enter chooses."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output.vt100 import Vt100_Output

from amplifier_app.base.sanitize import in_line
from amplifier_app.render.ansi import clip

_MOST_ROWS = 15

T = TypeVar("T")
R = TypeVar("R")

Bind = Callable[..., Callable[[Callable[[KeyPressEvent], None]], None]]


class Picker(Generic[T, R]):
    """A list of entries `T` with a filter, which ends with a result `R`.

    Args:
        entries: What is listed.

    Attributes:
        entries: What is listed.
        keys: What the keys do, shown below the list.
        nothing: What is shown of an empty list.
        message: Shown in its place once.
        size: Returns the columns and rows of the terminal.
    """

    keys = ""
    nothing = ""

    def __init__(self, entries: Sequence[T]) -> None:
        self.entries = entries
        self.message = ""
        self.size: Callable[[], tuple[int, int]] = lambda: (80, 24)
        self._filter = ""
        self._selected = 0
        self._first = 0

    # What an entry is

    def row(self, entry: T) -> str:
        """The line of an entry."""
        raise NotImplementedError

    def search_text(self, entry: T) -> str:
        """The text of an entry that the filter is compared with, without case."""
        raise NotImplementedError

    def accept(self) -> R | None:
        """Handle Enter; the result if that ends the list."""
        raise NotImplementedError

    # What is shown

    def matching_entries(self) -> list[T]:
        """The entries that contain every word of the filter."""
        words = self._filter.casefold().split()
        return [one for one in self.entries if all(word in self.search_text(one) for word in words)]

    @property
    def current(self) -> T | None:
        """The selected entry."""
        shown = self.matching_entries()
        return shown[min(self._selected, len(shown) - 1)] if shown else None

    def lines(self) -> StyleAndTextTuples:
        """The list as styled text."""
        columns, rows = self.size()
        shown = self.matching_entries()
        count = max(1, min(_MOST_ROWS, rows - 5))
        self._selected = max(0, min(self._selected, len(shown) - 1))
        self._first = max(min(self._first, self._selected), self._selected - count + 1)
        text: StyleAndTextTuples = []
        for n, one in enumerate(shown[self._first : self._first + count], self._first):
            mark, style = ("▸ ", "bold") if n == self._selected else ("  ", "")
            text.append((style, clip(mark + self.row(one), columns - 1) + "\n"))
        if not shown:
            text.append(("", f"  {self.nothing}{' matches' if self._filter else ''}\n"))
        more = len(shown) - self._first - count
        if more > 0:
            text.append(("class:dim", f"  {more:,} more\n"))
        return [*text, *self.below(columns)]

    def below(self, columns: int) -> StyleAndTextTuples:
        """What is shown below the entries: the filter and the keys."""
        below = self.message or clip(f"  type to filter · {self.keys}", columns - 1)
        return [("", f"  › {in_line(self._filter)}"), ("reverse", " "), ("class:dim", f"\n{below}")]

    # Keys

    def insert_text(self, text: str) -> None:
        """Handle typed text."""
        self.message = ""
        self._filter += text
        self._selected = 0

    def erase(self) -> None:
        """Handle Backspace."""
        self._filter = self._filter[:-1]

    def move(self, lines: int) -> None:
        """Select another entry."""
        self._selected = max(0, self._selected + lines)

    def select(self, entry: T) -> None:
        """Begin at an entry."""
        self._selected = self.entries.index(entry)

    def leave_mode(self) -> bool:
        """Whether Esc only leaves a question about an entry."""
        return False

    def bind(self, bind: Bind) -> None:
        """Add keys."""


async def pick(picker: Picker[T, R]) -> R | None:
    """Let the user choose on the terminal; None if they leave.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    with _terminal() as output:
        picker.size = lambda: (output.get_size().columns, output.get_size().rows)
        control = FormattedTextControl(picker.lines, focusable=True, show_cursor=False)
        application: Application[R | None] = Application(
            layout=Layout(Window(control, wrap_lines=False, always_hide_cursor=True)),
            key_bindings=_bindings(picker),
            output=output,
            erase_when_done=True,
        )
        application.ttimeoutlen, application.timeoutlen = 0.05, 0.3
        try:
            return await application.run_async()
        except EOFError:  # the terminal is gone
            return None


@contextmanager
def _terminal() -> Generator[Vt100_Output]:
    """The terminal, also where stdout is redirected."""
    with open("/dev/tty", "w", encoding="utf-8", errors="replace") as terminal:
        output = Vt100_Output.from_pty(terminal, term=os.environ.get("TERM"))
        output.enable_cpr = False  # as at the input line
        yield output


def _bindings(picker: Picker[T, R]) -> KeyBindings:
    bindings = KeyBindings()

    def bind(*keys: Keys | str) -> Callable[[Callable[[KeyPressEvent], None]], None]:
        def register(handler: Callable[[KeyPressEvent], None]) -> None:
            for key in keys:
                bindings.add(key, eager=key == "escape")(handler)

        return register

    bind("up", "c-p")(lambda event: picker.move(-1))
    bind("down", "c-n")(lambda event: picker.move(1))
    bind("pageup")(lambda event: picker.move(-_MOST_ROWS))
    bind("pagedown")(lambda event: picker.move(_MOST_ROWS))
    bind("backspace")(lambda event: picker.erase())
    bind(Keys.BracketedPaste)(lambda event: picker.insert_text(in_line(event.data)))

    @bind("enter", "c-j")
    def _(event: KeyPressEvent) -> None:
        result = picker.accept()
        if result is not None:
            event.app.exit(result=result)

    @bind("escape", "c-d")
    def _(event: KeyPressEvent) -> None:
        if not picker.leave_mode():
            event.app.exit(result=None)

    bind("c-z")(lambda event: event.app.suspend_to_background())

    @bind("c-c")
    def _(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    @bind(Keys.Any)
    def _(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            picker.insert_text(event.data)

    picker.bind(bind)
    return bindings
