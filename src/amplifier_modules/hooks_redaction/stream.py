"""Redact text that arrives in pieces: what may yet become a secret is held back."""

from __future__ import annotations

import re

from amplifier_support.redaction import Redactor

LONGEST_HELD = 20_000
"""Most characters held back; secrets are not longer."""

_BEGUN = re.compile(
    r"-----BEGIN[^-]{0,60}-{0,5}(?:[^-]|-(?!----))*+\Z"
    r"|authorization[\s\"'\\:=]{0,12}(?:basic|token|apikey)?\s{0,12}\Z"
    r"|(?:bearer|passw(?:or)?d|passphrase|pwd|secret|key|token)"
    r"[\s\"'\\:=]{0,12}\Z",
    re.IGNORECASE,
)
"""At the end of a text: what the next words may turn into a secret."""


class StreamRedactor:
    """Redact one stream of text.

    Args:
        redactor: Replaces the secrets in the text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add the next piece; returns the text that is now safe to show."""
        held = self._held + piece
        if len(held) > LONGEST_HELD:
            self._held = ""
            return self._redactor.text(held)
        cut = _safe_end(held)
        self._held = held[cut:]
        return self._redactor.text(held[:cut])

    def flush(self) -> str:
        """The rest, at the end of the stream."""
        held, self._held = self._held, ""
        return self._redactor.text(held)


def _safe_end(text: str) -> int:
    """The start of the last word, if it is complete and does not affect the next one."""
    end = len(text)
    while end and not text[end - 1].isspace():
        end -= 1
    begun = _BEGUN.search(text, 0, end)
    if begun is None:
        return end
    # Including its context: a name such as `db_password`, or the start of a header.
    start = begun.start()
    while start and not text[start - 1].isspace():
        start -= 1
    return start
