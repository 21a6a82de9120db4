"""A check of `amplifier doctor`."""

from __future__ import annotations

from typing import Literal

from amplifier_support.named_tuple import NamedTuple

State = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: What was checked, in a word.
        state: `ok`; `warn` if it may cause problems; `fail` if it does.
        message: What was found.
        fix: What to do about it; None if there is nothing to do.
    """

    name: str
    state: State
    message: str
    fix: str | None = None
