"""One thing that `amplifier doctor` looked at."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What, in a word.
        state: Whether it is in order (`ok`), may be in the way (`warn`) or is (`fail`).
        message: What was found.
        mend: What to do about it; None if there is nothing to do.
    """

    name: str
    state: State
    message: str
    mend: str | None = None
