"""Text from models, tools and files, made harmless for a terminal.

Whoever writes ESC to a terminal commands it: moves the cursor, retitles the window, fills the
clipboard. Bidirectional controls show text in another order than it is read. Neither ever passes.
Whole escape sequences are removed, so that no `[31m` is left behind; one that never ends within
its limit loses its ESC only, so that no text can hide behind it.
"""

from __future__ import annotations

import re

# ESC [ parameters intermediates final: colours, cursor movement.
_CSI = r"\[[0-?]{0,64}[ -/]{0,8}[@-~]"
# ESC ] text terminator (titles, links, clipboard), and the other strings: DCS, SOS, PM, APC.
_STRING = r"[\]PX^_][^\x07\x1b\n]{0,1024}(?:\x07|\x1b\\)"
# ESC intermediates final: character sets, reset.
_SHORT = r"[ -/]{0,8}[0-OQ-WYZ\\`-~]"
_SEQUENCE = rf"\x1b(?:{_CSI}|{_STRING}|{_SHORT})"

# What could still become a sequence when more text arrives.
_UNFINISHED = r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b\n]{0,1024}\x1b?|[ -/]{0,8})?\Z"

_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"

# Fillers, the empty braille cell, variation selectors.
_NO_SHAPE = "[\u115f\u1160\u3164\uffa0\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]"

# Most texts have none of this, and most programs see only such texts: these two are compiled when
# one has (`re` keeps them).
_PIPE = rf"{_SEQUENCE}|[{_CONTROLS}]"
_TERMINAL = rf"{_SEQUENCE}|[{_CONTROLS}{_BIDI}\r]"
_ANY_FOR_PIPE = re.compile(rf"[{_CONTROLS}]")
_ANY_FOR_TERMINAL = re.compile(rf"[{_CONTROLS}{_BIDI}\r]")


def for_terminal(text: str) -> str:
    """`text` without escape sequences, control characters (but tab and newline) and bidi controls.

    Carriage returns go too: a lone one overwrites what stands in the line.
    """
    return re.sub(_TERMINAL, "", text) if _ANY_FOR_TERMINAL.search(text) else text


def for_pipe(text: str) -> str:
    """`text` without what commands a terminal, for output whose reader is not known.

    Bidi controls and carriage returns stay: in a file they are content.
    """
    return re.sub(_PIPE, "", text) if _ANY_FOR_PIPE.search(text) else text


def one_line(text: str, limit: int = 200) -> str:
    """`text` for a place that has one line: cleaned, white space collapsed, cut at `limit`."""
    line = " ".join(for_terminal(text[: limit * 8]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def in_line(text: str) -> str:
    """`text` for a line that is being typed: cleaned, each line break one character."""
    return for_terminal(text).replace("\t", " ").replace("\n", "⏎")


def visible(text: str, limit: int = 1000) -> str:
    """`text` in one line with nothing in it that cannot be seen, for who has to decide on it.

    What is not printable is shown as an escape, line breaks included, and so are characters that
    count as printable and have no shape. Cut at `limit`, with what is left.
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
    """The same over text that arrives in pieces, cut anywhere.

    What could be the beginning of a sequence is held back, at most some thousand characters of
    it, until it ends or turns out not to be one. Whatever way a text is cut, the sum of what
    comes out is the same.
    """

    def __init__(self, *, terminal: bool) -> None:
        self._pattern = _TERMINAL if terminal else _PIPE
        self._find = (_ANY_FOR_TERMINAL if terminal else _ANY_FOR_PIPE).search
        self._held = ""

    def feed(self, text: str) -> str:
        """What of the text so far is now safe to show."""
        if not self._held and not self._find(text):
            return text
        text = self._held + text
        unfinished = re.search(_UNFINISHED, text)
        if unfinished:
            self._held = text[unfinished.start() :]
            text = text[: unfinished.start()]
        else:
            self._held = ""
        return re.sub(self._pattern, "", text)

    def flush(self) -> str:
        """The rest, when no more text comes."""
        rest, self._held = self._held, ""
        return re.sub(self._pattern, "", rest)
