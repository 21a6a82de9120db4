"""Text for people: nothing in it is invisible, and it is not too long."""

from __future__ import annotations


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
