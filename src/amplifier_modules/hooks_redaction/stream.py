"""Redact text that arrives in pieces: what may yet become a secret is held back."""

from __future__ import annotations

import re

from amplifier_support.redaction import Redactor

LONGEST_HELD = 20_000
"""Most characters held back; secrets are not longer."""

CONTEXT = 400
"""Characters shown before that may say what the next words are: ``Authorization: Basic``."""

_BEGUN = re.compile(r"-----BEGIN[^-]{0,60}-{0,5}(?:[^-]|-(?!----))*+\Z")
"""A private key that has not ended yet."""


class StreamRedactor:
    """Redact one stream of text.

    Args:
        redactor: Replaces the secrets in the text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._shown = ""
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add the next piece; returns the text that is now safe to show."""
        held = self._held + piece
        cut = len(held)
        if cut <= LONGEST_HELD:
            cut = self._redactor.begun_at(held, _safe_end(held))
        self._held = held[cut:]
        return self._redacted(held[:cut])

    def flush(self) -> str:
        """The rest, at the end of the stream."""
        held, self._held = self._held, ""
        return self._redacted(held)

    def _redacted(self, text: str) -> str:
        if not text:
            return ""
        before = self._shown
        tail = (before + text)[-CONTEXT:]
        self._shown = tail if len(tail) < CONTEXT else _whole_words(tail)
        start = self._redactor.text(before)
        both = self._redactor.text(before + text)
        # Text that was shown stays as it was; no secret starts in it, because its last word is complete.
        return both[len(start) :] if both.startswith(start) else self._redactor.text(text)


def _whole_words(text: str) -> str:
    """`text` without the end of a word at its start."""
    start = 0
    while start < len(text) and not text[start].isspace():
        start += 1
    return text[start:]


def _safe_end(text: str) -> int:
    """The start of the last word, if it is complete and no private key has begun."""
    end = len(text)
    while end and not text[end - 1].isspace():
        end -= 1
    begun = _BEGUN.search(text, 0, end)
    return end if begun is None else begun.start()
