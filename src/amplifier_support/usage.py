"""Reading and adding up what model calls report to have used."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from decimal import Decimal, InvalidOperation
from typing import cast

from amplifier_support.fields import read_field

_MAX_ZEROS = 30
"""Amounts with more zeros before or behind the point are invalid: as text they could fill the memory."""

_MAX_TOKENS = 10**15
"""A larger count is invalid: no session uses so many, and arithmetic with floats would lose some."""


def token_count(value: object) -> int | None:
    """A count of tokens as a service reports it; None if there is none or it is not valid."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MAX_TOKENS else None


def token_counts(usage: object, *names: str) -> list[int] | None:
    """The counts under `names` in a service's report, 0 for each that it leaves out.

    None if the report is not a mapping or one of these counts is invalid: a sum without it would be
    too low.
    """
    if not isinstance(usage, Mapping):
        return None
    values = [cast("Mapping[str, object]", usage).get(name) for name in names]
    counts = [0 if value is None else token_count(value) for value in values]
    return None if None in counts else cast("list[int]", counts)


def total_tokens(usage: object) -> int | None:
    """The tokens of a model call: as reported, else the sum of both sides; None if not known.

    Args:
        usage: The kernel's `Usage`, or a mapping with the same keys.
    """
    total = read_field(usage, "total_tokens")
    if isinstance(total, int) and total > 0:
        return total
    sides = read_field(usage, "input_tokens"), read_field(usage, "output_tokens")
    known = [side for side in (*sides, total) if isinstance(side, int)]
    return sum(known) if known else None


def add_counts(totals: MutableMapping[str, int], usage: Mapping[str, object]) -> None:
    """Add every count of `usage` to `totals`; anything else in it is left out."""
    for name, value in usage.items():
        if (count := token_count(value)) is not None:
            totals[name] = totals.get(name, 0) + count


def dollars(value: object) -> Decimal | None:
    """An amount as providers report it, a number or text; None if it is not known or not valid."""
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    if not amount.is_finite() or amount < 0 or abs(amount.adjusted()) > _MAX_ZEROS:
        return None
    return amount


def amount_text(amount: float) -> str:
    """An amount of what a budget limits, for people: `2,000`, `1.5`."""
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.4f}".rstrip("0").rstrip(".")
