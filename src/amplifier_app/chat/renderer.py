"""How prompt_toolkit draws the chat at once, and erases it so that nothing of it stays in the scrollback."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from typing import Any

from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout.screen import Char, Screen
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import Renderer

from amplifier_app.base.stdio import Output
from amplifier_app.render.screen import ERASE_DOWN, reflows

# Terminals with synchronized updates draw nothing in between; others ignore the sequences.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


class UpdateFile:
    """A file for prompt_toolkit that collects what belongs to one update."""

    encoding = "utf-8"

    def __init__(self, output: Output) -> None:
        self._output = output
        self._parts: list[str] = []
        self._held = 0

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        if self._held:
            return
        text, self._parts = "".join(self._parts), []
        if text:
            self._output.write(f"{_BEGIN}{text}{_END}")

    @contextlib.contextmanager
    def hold_output(self) -> Generator[None]:
        """Write everything in it at once, at the end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._output.fd


class TerminalOutput(Vt100_Output):
    """A terminal whose scrollback has nothing of what is erased."""

    def erase_down(self) -> None:
        """Erase from the start of the line; prompt_toolkit does this in the first column only."""
        self.write_raw(ERASE_DOWN)


class ReflowRenderer(Renderer):
    """A renderer that finds the top of its region on a terminal that has wrapped the lines again."""

    def render(self, app: Any, layout: Any, is_done: bool = False) -> None:
        """Draw; before the signal of a new size has arrived, too."""
        drawn = self._last_size
        if drawn is not None and self.output.get_size().columns < drawn.columns:
            self.erase(leave_alternate_screen=False)
        super().render(app, layout, is_done)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Erase the region, as far up as it reaches now."""
        drawn, size = self._last_size, self.output.get_size()
        if (
            self._last_screen is not None
            and drawn is not None
            and size.columns < drawn.columns
            and reflows(os.environ)
        ):
            self._cursor_pos = self._cursor_after_reflow(self._last_screen, size.columns)
        super().erase(leave_alternate_screen)

    def _cursor_after_reflow(self, screen: Screen, columns: int) -> Point:
        """Where the cursor is after each line has been wrapped at `columns`."""
        x, y = self._cursor_pos
        above = sum(max(1, -(-self._cells(screen.data_buffer[row]) // columns)) for row in range(y))
        return Point(x=x % columns, y=above + x // columns)

    def _cells(self, row: Mapping[int, Char]) -> int:
        """The cells of a row as it was written: without plain spaces at its end."""
        styled = self._style_string_has_style or {}
        written = (x + one.width for x, one in row.items() if one.char != " " or styled[one.style])
        return max(written, default=0)
