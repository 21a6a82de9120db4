"""Lines on the messages that were sent and have not been used."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.sanitize import one_line

_MAX_WAITING = 3
"""Messages shown; the rest is counted."""


def waiting_lines(queued: Sequence[str], later: Sequence[str]) -> list[str]:
    """Return a line for each message, and one for those that are too many.

    Args:
        queued: Messages for the next step of the running turn.
        later: What runs after the turn.
    """
    lines = [f"  queued for the next step: {one_line(text)}" for text in queued]
    lines += [f"  will run when it finishes: {one_line(text)}" for text in later]
    more = len(lines) - _MAX_WAITING
    return [*lines[:_MAX_WAITING], f"  … {more} more"] if more > 0 else lines
