"""The terminal as a renderer sees it: scrollback that only grows, and a live region below it.

`AnsiScreen` writes to a terminal directly, for a single prompt. In the chat, the application that
reads the keyboard is the screen.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from amplifier_app.base.stdio import Output, terminal_size
from amplifier_app.render.ansi import cells, clip, wrapped
from amplifier_app.runtime.turns.turn import result_in
from amplifier_support.fields import read_field

# Terminals with synchronized updates draw nothing in between; others ignore the sequences.
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

ERASE_DOWN = " \x1b[J\r\x1b[K"
"""Erases from the first column down. Not just `ESC [ J`: if that erases the whole screen, tmux moves what
was on it to the scrollback."""


class Screen(Protocol):
    """The surface of a renderer. Text may have colours (SGR) and links (OSC 8), nothing else."""

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
            live: A new live region, shown in the same update; None keeps the present one. Lines wider than
                the screen are cut.
        """
        ...

    def signal(self, sequence: str) -> None:
        """Send a control sequence that neither draws nor moves the cursor, such as a title."""
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
        self._draw(text)

    def signal(self, sequence: str) -> None:
        self._output.write(sequence)

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
        self._output.write(f"{BEGIN_UPDATE}{update}{END_UPDATE}" if lines or cursor else update)

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
    """Return True if the terminal wraps lines again when it becomes narrower; a few cut them instead."""
    if "TMUX" in environment:
        return True
    term = environment.get("TERM", "")
    return "XTERM_VERSION" not in environment and not term.startswith(("linux", "screen", "vt"))


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

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        return self._screen.width

    def print(self, lines: Iterable[str]) -> None:
        """Add lines."""
        self._lines += [f"{line}\n" for line in lines]
        self._last = self._last or "note"

    def add(self, kind: Kind, lines: Iterable[str], *, always: bool = False) -> None:
        """Add a part: below an empty line if it is of another kind than the last, or always."""
        self.print(self.spaced(kind, list(lines), always=always))
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


_PNG = b"\x89PNG\r\n\x1a\n"
_SIZE = struct.Struct(">II")
_SIZE_AT = 16
"""The offset of the width and height in the header of a PNG."""

_MAX_BYTES = 2_000_000
_CHUNK = 4096
_PIXELS_PER_ROW = 20
_ROW_PER_COLUMN = 2
"""Approximate ratio of a cell's height to its width; only the terminal knows the exact one."""


def image_protocol(environment: Mapping[str, str]) -> str:
    """Return how a terminal draws images, as ``kitty`` or ``iterm``; empty if it does not, as inside tmux or screen.

    Other programs support a part of kitty's protocol and write their answers into the input line.
    """
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM")
    if "TMUX" in environment or "STY" in environment or term.startswith(("screen", "tmux")):
        return ""
    if program == "iTerm.app":
        return "iterm"
    named = term in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environment
    return "kitty" if named or program == "ghostty" else ""


def image_blocks(data: dict[str, Any]) -> Iterator[Any]:
    """The images in the result of a tool event."""
    content = read_field(result_in(data), "content")
    for block in cast("list[Any]", content) if isinstance(content, list) else ():
        if read_field(block, "type") == "image":
            yield block


def picture(block: Any, protocol: str, width: int, height: int) -> str:
    """The lines that draw an image, without the last line break; empty if it is not a PNG.

    The cursor is moved only inside these lines, which end where text of as many rows would.

    Args:
        block: The image.
        protocol: See `image_protocol`.
        width: Columns of the terminal.
        height: Its rows.
    """
    encoded = read_field(read_field(block, "source") or block, "data")
    if not isinstance(encoded, str) or len(encoded) > _MAX_BYTES * 4 // 3:
        return ""
    try:
        image = base64.b64decode(encoded, validate=True)
        columns, rows = _SIZE.unpack_from(image, _SIZE_AT)
    except (binascii.Error, struct.error, ValueError):
        return ""
    if not image.startswith(_PNG) or not columns or not rows:
        return ""
    taken = _rows(columns, rows, width - 4, max(1, height // 2))
    above = taken - 1
    up, down = (f"\x1b[{above}A", f"\x1b[{above}B") if above else ("", "")
    encoded = base64.b64encode(image).decode()
    drawn = _draw_command(encoded, taken, protocol)
    return "\n" * above + up + "\r" + drawn + down


def _rows(columns: int, rows: int, most_columns: int, most_rows: int) -> int:
    """The number of terminal rows for an image of this size in pixels."""
    needed = math.ceil(rows / _PIXELS_PER_ROW)
    fitting = most_columns * rows / (columns * _ROW_PER_COLUMN)
    return max(1, min(needed, most_rows, int(fitting)))


def _draw_command(encoded: str, rows: int, protocol: str) -> str:
    """The command that draws an image at the cursor, which stays there; it requests no answer."""
    if protocol == "iterm":
        return f"\x1b7\x1b]1337;File=inline=1;height={rows}:{encoded}\x07\x1b8"
    parts = [encoded[start : start + _CHUNK] for start in range(0, len(encoded), _CHUNK)]
    first, last = f"a=T,f=100,r={rows},C=1,", len(parts) - 1
    commands = (
        f"\x1b_G{'' if number else first}q=2,m={int(number < last)};{part}\x1b\\"
        for number, part in enumerate(parts)
    )
    return "".join(commands)
