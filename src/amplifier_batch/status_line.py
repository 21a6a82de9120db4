"""Progress on stderr: one line that is redrawn on a terminal, else a line for every tenth."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from amplifier_app.base.stdio import stderr_is_tty, terminal_size, to_stderr
from amplifier_app.render.ansi import clip

_REDRAW_SECONDS = 0.2
_PARTS = 10


class StatusLine:
    """The line of one task.

    Args:
        rows: The number of rows.
        quiet: Whether to show none.
    """

    def __init__(self, rows: int, *, quiet: bool) -> None:
        self.rows = rows
        self.quiet = quiet
        self.redraws = stderr_is_tty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0.0
        self._part: int | None = None

    def show(self, ended: int, text: Callable[[], str]) -> None:
        """Show the progress.

        Args:
            ended: The number of rows that have ended.
            text: Returns the line.
        """
        part, now = ended * _PARTS // self.rows, time.monotonic()
        if self._part is None:
            self._part = part
        if self.quiet or (self.redraws and now - self._drawn < _REDRAW_SECONDS):
            return
        # The final line reports the last row.
        if not self.redraws and (part == self._part or ended == self.rows):
            return
        self._part, self._drawn = part, now
        if self.redraws:
            width = terminal_size(2)[0]
            os.write(2, f"\r\x1b[K{clip(text(), width - 1)}".encode())
        else:
            to_stderr(text())

    def say(self, text: str) -> None:
        """Write a line of its own."""
        self.end()
        to_stderr(text)

    def end(self) -> None:
        """Remove the line that is redrawn."""
        if self.redraws and self._drawn:
            os.write(2, b"\r\x1b[K")
            self._drawn = 0.0
