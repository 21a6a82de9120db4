"""Lines on their way to the scrollback, with an empty line between parts of different kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from amplifier_app.render.ansi import wrapped
from amplifier_app.render.screen import Screen

Kind = Literal["text", "thinking", "tool", "note", "message", "footer", "status"]


class Scrollback:
    """Collects lines until the next update of the screen.

    Args:
        screen: The terminal.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines: list[str] = []
        self._last: Kind | None = None  # the kind of the last part

    def print(self, lines: Iterable[str]) -> None:
        """Add lines."""
        self._lines += [f"{line}\n" for line in lines]

    def begin(self, kind: Kind, *, always: bool = False) -> None:
        """Begin a part: below an empty line if it is of another kind than the last, or always."""
        self.print(self.spaced(kind, [], always=always))
        self._last = kind

    def spaced(self, kind: Kind, lines: list[str], *, always: bool = False) -> list[str]:
        """Return lines of the live region below the same space that they have when printed."""
        needed = self._last is not None and (always or kind != self._last)
        return ["", *lines] if needed else lines

    def wrapped(self, text: str, indent: int = 0) -> list[str]:
        """Return text as lines that fit the screen next to an indentation."""
        width = max(self._screen.width - indent, 8)
        return [row for line in text.split("\n") for row in wrapped(line.rstrip(), width)]

    def take(self) -> str:
        """Return the collected lines as text and forget them."""
        text, self._lines = "".join(self._lines), []
        return text
