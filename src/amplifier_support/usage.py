"""Adding up what model calls report to have used."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from decimal import Decimal, InvalidOperation

_MOST_ZEROS = 30
"""Amounts with more zeros before or behind the point are invalid: as text they could fill the memory."""


def add_counts(totals: MutableMapping[str, int], usage: Mapping[str, object]) -> None:
    """Add every count of `usage` to `totals`; anything else in it is left out."""
    for name, count in usage.items():
        if isinstance(count, int) and not isinstance(count, bool):
            totals[name] = totals.get(name, 0) + count


def dollars(value: object) -> Decimal | None:
    """An amount as providers report it, a number or text; None if it is not known or not valid."""
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    if not amount.is_finite() or amount < 0 or abs(amount.adjusted()) > _MOST_ZEROS:
        return None
    return amount
