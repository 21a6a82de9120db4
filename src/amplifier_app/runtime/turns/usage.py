"""Sums of tokens and cost."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from amplifier_app.sessions.summary import cost_in
from amplifier_support.fields import field_of
from amplifier_support.usage import add_counts, dollars, total_tokens

_TOKEN_FIELDS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "reasoning_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    # Calls that were stopped: the service bills them but did not report on them.
    "estimated_calls",
)


class Usage:
    """Tokens and cost of some model calls.

    Attributes:
        tokens: Sums by field of the kernel's `Usage`; unreported fields are absent. With
            `estimated_calls` they are estimates in part, and so is the cost.
        cost_usd: US dollars; None if the price of any call is unknown.
        calls: Number of calls summed.
    """

    __slots__ = ("calls", "cost_usd", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.cost_usd: Decimal | None = None
        self.calls = 0

    @classmethod
    def of_saved(cls, metadata: Mapping[str, Any]) -> Usage:
        """What a saved session has used so far."""
        usage = cls()
        tokens = metadata.get("usage")
        if isinstance(tokens, dict) and tokens:
            add_counts(usage.tokens, cast("dict[str, object]", tokens))
            usage.calls, usage.cost_usd = 1, cost_in(metadata)
        return usage

    def add(self, usage: Any) -> None:
        """Add one call's usage: the kernel's model, or a dict with the same keys."""
        if not usage:
            return
        counts = {name: field_of(usage, name) for name in _TOKEN_FIELDS}
        add_counts(self.tokens, {**counts, "total_tokens": total_tokens(usage)})
        self._add_cost(dollars(field_of(usage, "cost_usd")))

    def add_unknown(self, calls: int) -> None:
        """Add calls without reported usage."""
        if calls:
            self._add_cost(None, calls)

    def merge(self, other: Usage) -> None:
        """Add another sum to this one."""
        if not other.calls:
            return
        add_counts(self.tokens, other.tokens)
        self._add_cost(other.cost_usd, other.calls)

    def _add_cost(self, cost: Decimal | None, calls: int = 1) -> None:
        first = not self.calls
        self.calls += calls
        if cost is None or (self.cost_usd is None and not first):
            self.cost_usd = None
        else:
            self.cost_usd = (self.cost_usd or Decimal(0)) + cost
