"""The terminal as a renderer sees it: scrollback that only grows, and a live region below it.

`AnsiScreen` writes to a terminal directly, for a single prompt. In the chat, the application that
reads the keyboard is the screen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from amplifier_app.base.stdio import Output, terminal_size
from amplifier_app.render.ansi import cells, clip

# Terminals with synchronized updates draw nothing in between; others ignore the sequences.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

ERASE_DOWN = " \x1b[J\r\x1b[K"
"""Erases from the first column down. Not just `ESC [ J`: if that erases the whole screen, tmux moves what
was on it to the scrollback."""


class Screen(Protocol):
    """Where a renderer draws. All text may have colours (SGR) and links (OSC 8), nothing else."""

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        ...

    @property
    def height(self) -> int:
        """Rows of the terminal now."""
        ...

    @property
    def failure(self) -> OSError | None:
        """The error that ended all output, such as a closed terminal; None while it works."""
        ...

    def commit(self, text: str, live: Sequence[str] | None = None) -> None:
        """Add whole lines above the live region, for good: they are never drawn again.

        Args:
            text: Lines, each with its line break; empty for none.
            live: A new live region, shown in the same update; None keeps the present one.
        """
        ...

    def show(self, lines: Sequence[str]) -> None:
        """Replace the live region; no lines clear it. Lines wider than the screen are cut."""
        ...

    def signal(self, sequence: str) -> None:
        """Send a control sequence that neither draws nor moves the cursor, such as a title."""
        ...

    def close(self) -> None:
        """Clear the live region and leave the terminal as it was before."""
        ...


class AnsiScreen:
    """A `Screen` on a terminal that nothing else writes to.

    Each update is one write. The cursor stays in the last line of the live region, so the region is
    found again after the terminal has scrolled or has been resized. It is at the start of that line:
    the terminal echoes keys such as `^C` there, and at the end of a full line the echo would wrap.

    Args:
        output: The terminal.
        environment: Variables that name the terminal program. Default: those of the process.
    """

    def __init__(self, output: Output, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        self._reflows = reflows(os.environ if environment is None else environment)
        self._live: list[str] = []
        self._drawn: list[str] = []  # as written: cut to the width of that moment

    @property
    def width(self) -> int:
        return terminal_size(self._output.fd)[0]

    @property
    def height(self) -> int:
        return terminal_size(self._output.fd)[1]

    @property
    def failure(self) -> OSError | None:
        return self._output.failure

    def commit(self, text: str, live: Sequence[str] | None = None) -> None:
        if live is not None:
            self._live = list(live)
        if text and not text.endswith("\n"):
            text += "\n"
        self._draw(text)

    def show(self, lines: Sequence[str]) -> None:
        self.commit("", lines)

    def signal(self, sequence: str) -> None:
        self._output.write(sequence)

    def close(self) -> None:
        self.show([])

    def _draw(self, text: str) -> None:
        width, height = terminal_size(self._output.fd)
        lines = [clip(line, width) for line in self._live[-max(1, height - 1) :]]
        if not text and lines == self._drawn:
            return
        cursor = ""
        if bool(lines) != bool(self._drawn):
            cursor = _HIDE_CURSOR if lines else _SHOW_CURSOR
        start = "\r" if lines else ""
        update = "".join([self._erase_sequence(width), text, "\n".join(lines), start, cursor])
        self._drawn = lines
        self._output.write(f"{_BEGIN}{update}{_END}" if lines or cursor else update)

    def _erase_sequence(self, width: int) -> str:
        """Return the sequence that erases the live region and moves the cursor to its start."""
        if not self._drawn:
            return ""
        above = self._drawn[:-1]
        rows = len(above)
        if self._reflows:
            # If the terminal has become narrower since, each line may take several rows.
            rows = sum(max(1, -(-cells(line) // width)) for line in above)
        return (f"\r\x1b[{rows}A" if rows else "\r") + ERASE_DOWN


def reflows(environment: Mapping[str, str]) -> bool:
    """Whether the terminal wraps lines again when it becomes narrower; a few cut them instead."""
    if "TMUX" in environment:
        return True
    term = environment.get("TERM", "")
    return "XTERM_VERSION" not in environment and not term.startswith(("linux", "screen", "vt"))
