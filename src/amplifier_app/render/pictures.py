"""Images in terminals with the graphics protocol of kitty; elsewhere they are a line of text."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, cast

from amplifier_app.runtime.turns.event_data import result_in
from amplifier_support.fields import field_of

_PNG = b"\x89PNG\r\n\x1a\n"
_SIZE = struct.Struct(">II")
_SIZE_AT = 16
"""The offset of the width and height in the header of a PNG."""

_MOST_BYTES = 2_000_000
_CHUNK = 4096
_PIXELS_PER_ROW = 20
_ROW_PER_COLUMN = 2
"""Approximate ratio of a cell's height to its width; only the terminal knows the exact one."""


def shows_pictures(environment: Mapping[str, str]) -> bool:
    """Whether a terminal draws images: kitty and Ghostty, but not inside tmux or screen.

    Other programs support a part of the protocol and write their answers into the input line.
    """
    term = environment.get("TERM", "")
    if "TMUX" in environment or "STY" in environment or term.startswith(("screen", "tmux")):
        return False
    named = term in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environment
    return named or environment.get("TERM_PROGRAM") == "ghostty"


def image_blocks(data: dict[str, Any]) -> Iterator[Any]:
    """The images in the result of a tool event."""
    content = field_of(result_in(data), "content")
    for block in cast("list[Any]", content) if isinstance(content, list) else ():
        if field_of(block, "type") == "image":
            yield block


def picture(block: Any, width: int, height: int) -> str:
    """The lines that draw an image, without the last line break; empty if it is not a PNG.

    The cursor is moved only inside these lines, which end where text of as many rows would.

    Args:
        block: The image.
        width: Columns of the terminal.
        height: Its rows.
    """
    encoded = field_of(field_of(block, "source") or block, "data")
    if not isinstance(encoded, str) or len(encoded) > _MOST_BYTES * 4 // 3:
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
    return "\n" * above + up + "\r" + _draw_command(base64.b64encode(image).decode(), taken) + down


def _rows(columns: int, rows: int, most_columns: int, most_rows: int) -> int:
    """The number of terminal rows for an image of this size in pixels."""
    needed = math.ceil(rows / _PIXELS_PER_ROW)
    fitting = most_columns * rows / (columns * _ROW_PER_COLUMN)
    return max(1, min(needed, most_rows, int(fitting)))


def _draw_command(encoded: str, rows: int) -> str:
    """The command that draws an image at the cursor, which stays there; it requests no answer."""
    parts = [encoded[start : start + _CHUNK] for start in range(0, len(encoded), _CHUNK)]
    commands: list[str] = []
    for number, part in enumerate(parts):
        more = int(number + 1 < len(parts))
        keys = f"a=T,f=100,r={rows},C=1,q=2,m={more}" if number == 0 else f"q=2,m={more}"
        commands.append(f"\x1b_G{keys};{part}\x1b\\")
    return "".join(commands)
