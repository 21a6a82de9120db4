"""Text in which nothing is invisible."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line, with an escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_in_tags(text: str) -> str:
    """Like `printable`, for text between tags: it cannot close them."""
    return printable(text).replace("</", "<\\/")
