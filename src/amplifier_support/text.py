"""Text for people: suggestions for misspelt names, printable characters only, no escape sequences; and patterns
that are compiled when they are first used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast


class _Pattern:
    def __init__(self, text: str, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._source), name)
        # From now on the attribute is found without this method.
        setattr(self, name, value)
        return value


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, later: for modules that every run imports and few runs use."""
    return cast("re.Pattern[str]", _Pattern(text, flags))


_CUTOFF = 0.65


def nearest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """The known name most similar to `name`, ignoring case; None if none is similar.

    Args:
        name: The misspelt name.
        known: The existing names.
        cutoff: How similar they must be, from 0 to 1.
    """
    # Only reached after an error, so that other runs do not pay for the import.
    from difflib import get_close_matches

    # The dashes that all options begin with do not make them alike.
    compared, letters = _compared(name), sorted(_compared(name))
    by_compared = {_compared(candidate): candidate for candidate in known}
    near = [
        match
        for match in get_close_matches(compared, by_compared, cutoff=cutoff)
        if _rest_is_similar(compared, match)
    ]
    # Most often two letters were exchanged: `--modle` is `--model`, and not `--mode`.
    near.sort(key=lambda candidate: sorted(candidate) != letters)
    return by_compared[near[0]] if near else None


def _rest_is_similar(name: str, known: str) -> bool:
    """Compare what follows a common first word, such as `tool-`: it does not make names alike."""
    from difflib import SequenceMatcher

    (first, dash, rest), (other, _, others) = name.partition("-"), known.partition("-")
    if not dash or first != other or rest.startswith(others) or others.startswith(rest):
        return True
    return SequenceMatcher(None, rest, others).ratio() >= _CUTOFF


def _compared(name: str) -> str:
    return name.lower().lstrip("-")


def did_you_mean(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """`did you mean 'x'?` for the known name nearest to `name`, else None."""
    near = nearest(name, known, cutoff)
    return None if near is None else f"did you mean {near!r}?"


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """The length of the common beginning of two texts."""
    # Of requests of megabytes: slices are compared a thousand times faster than single items.
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def printable(text: str) -> str:
    """`text` in one line, with an escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_in_tags(text: str) -> str:
    """Like `printable`, for text between tags: it cannot close them."""
    return printable(text).replace("</", "<\\/")


def cut_text(text: str, limit: int) -> str:
    """`text` in at most `limit` characters, with `…` for the rest."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# ESC [ parameters intermediates final: colours, cursor movement.
_CSI = r"\[[0-?]{0,64}[ -/]{0,8}[@-~]"
# ESC ] text terminator (titles, links, clipboard), and the other strings: DCS, SOS, PM, APC.
_STRING = r"[\]PX^_][^\x07\x1b\n]{0,1024}(?:\x07|\x1b\\)"
# ESC intermediates final: character sets, reset.
_SHORT = r"[ -/]{0,8}[0-OQ-WYZ\\`-~]"

SEQUENCE = rf"\x1b(?:{_CSI}|{_STRING}|{_SHORT})"
"""Pattern of a whole sequence. Those that are longer do not match, so that they cannot hide text."""

UNFINISHED = r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b\n]{0,1024}\x1b?|[ -/]{0,8})?\Z"
"""Pattern of the end of a text that more text could turn into a sequence."""


def without_sequences(text: str) -> str:
    """Return `text` without whole escape sequences."""
    # Compiled on first use: most texts have none.
    return re.sub(SEQUENCE, "", text) if "\x1b" in text else text


def without_login(url: str) -> str:
    """An address without user name and password."""
    return re.sub(r"//[^/]*@", "//", url)
