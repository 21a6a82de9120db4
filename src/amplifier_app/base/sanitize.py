"""Make text from models, tools and files safe for a terminal.

Escape sequences control the terminal: they move the cursor, change the window title, fill the
clipboard. Bidirectional controls change the visible order of text. Both are always removed. Escape
sequences are removed whole, so that no `[31m` is left; from a sequence that exceeds its length limit
only the ESC is removed, so that it cannot hide text.
"""

from __future__ import annotations

import re

from amplifier_support.text import SEQUENCE, UNFINISHED, cut_text, lazy_pattern

_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"

# Fillers, the empty braille cell, variation selectors.
_NO_SHAPE = "[\u115f\u1160\u3164\uffa0\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]"

# Most texts contain none of this, so the long patterns are compiled on first use (`re` caches them).
_PIPE = rf"{SEQUENCE}|[{_CONTROLS}]"
_TERMINAL = rf"{SEQUENCE}|[{_CONTROLS}{_BIDI}\r]"
_ANY_FOR_PIPE = lazy_pattern(rf"[{_CONTROLS}]")
_NOT_XML = r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_ANY_FOR_TERMINAL = lazy_pattern(rf"[{_CONTROLS}{_BIDI}\r]")


def for_terminal(text: str) -> str:
    """`text` without escape sequences, control characters (except tab and newline) and bidi controls.

    Carriage returns are removed too: a lone one overwrites the line.
    """
    return re.sub(_TERMINAL, "", text) if _ANY_FOR_TERMINAL.search(text) else text


def with_colours(text: str) -> str:
    """`for_terminal`, except that colours and styles are kept; they end with the text."""
    parts = re.split(r"(\x1b\[[0-9;:]*m)", text)
    parts[::2] = map(for_terminal, parts[::2])
    return "".join([*parts, "\x1b[0m"]) if len(parts) > 1 else parts[0]


def for_pipe(text: str) -> str:
    """`text` without terminal controls, for output with an unknown reader.

    Bidi controls and carriage returns are kept: in a file they are content.
    """
    return re.sub(_PIPE, "", text) if _ANY_FOR_PIPE.search(text) else text


def one_line(text: str, limit: int = 200) -> str:
    """`text` as one line: sanitized, white space collapsed, truncated at `limit`."""
    if len(text) <= limit and text.isascii() and text.isprintable() and " " not in text:
        return text
    return cut_text(" ".join(for_terminal(text[: limit * 8]).split()), limit)


def in_line(text: str) -> str:
    """`text` for an input line: sanitized, each line break as one character."""
    return for_terminal(text).replace("\t", " ").replace("\n", "⏎")


def visible(text: str, limit: int = 1000) -> str:
    """`text` as one line without invisible characters, for approval by the user.

    Characters that are not printable are escaped, line breaks included, and so are printable
    characters without a glyph. Truncated at `limit`, with the number of remaining characters.
    """
    if not text.isprintable() or re.search(_NO_SHAPE, text):
        text = "".join(map(_escaped, text))
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def _escaped(character: str) -> str:
    if character == "\t" or (character.isprintable() and not re.match(_NO_SHAPE, character)):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class StreamSanitizer:
    """Sanitizes text that arrives in pieces of any size.

    A possible beginning of a sequence is held back, up to about a thousand characters, until it is
    complete or turns out not to be a sequence. The result does not depend on the pieces.
    """

    def __init__(self, *, terminal: bool) -> None:
        self._pattern = _TERMINAL if terminal else _PIPE
        self._find = (_ANY_FOR_TERMINAL if terminal else _ANY_FOR_PIPE).search
        self._held = ""

    def feed(self, text: str) -> str:
        """The part of the text so far that is safe to show."""
        if not self._held and not self._find(text):
            return text
        text = self._held + text
        unfinished = re.search(UNFINISHED, text)
        if unfinished:
            self._held = text[unfinished.start() :]
            text = text[: unfinished.start()]
        else:
            self._held = ""
        return re.sub(self._pattern, "", text)

    def flush(self) -> str:
        """The rest, at the end of the text."""
        rest, self._held = self._held, ""
        return re.sub(self._pattern, "", rest)


def xml_text(text: str) -> str:
    """Replace what XML cannot contain by U+FFFD; markup is not escaped."""
    return re.sub(_NOT_XML, "\ufffd", text)
