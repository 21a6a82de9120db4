"""A minimal terminal emulator: what the screen shows after everything written to it."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|([^\x1b\r\n]+)", re.DOTALL)


def screen(written: str) -> list[str]:
    """Return the lines of scrollback and screen, without trailing spaces.

    Raises:
        AssertionError: A sequence that is none of: colours, cursor up, erase line, modes.
    """
    lines, row, column = [""], 0, 0
    position = 0
    for token in _TOKEN.finditer(written):
        assert token.start() == position, f"not understood: {written[position:][:40]!r}"
        position = token.end()
        text = token[0]
        if text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0  # the terminal adds the carriage return
            lines += [""] * (row + 1 - len(lines))
        elif token[3] is not None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token[3] + line[column + len(token[3]) :]
            column += len(token[3])
        elif token[2] == "A":
            row = max(0, row - int(token[1] or 1))
        elif token[2] == "K":
            assert token[1] == "2"
            lines[row] = ""
        else:
            assert token[2] in "mhl", f"not understood: {text!r}"
    assert position == len(written)
    return [line.rstrip() for line in lines]
