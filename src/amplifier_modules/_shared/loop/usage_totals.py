"""The usage of a session: model calls, tool calls, tokens, dollars, seconds."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from amplifier_support.usage import dollars, total_tokens


class Spent:
    """Amounts used so far.

    Attributes:
        steps: Model calls.
        tool_calls: Tool calls.
        tokens: Tokens of all model calls.
        cost: US dollars of the model calls whose price is known.
        unpriced: Model calls whose price is not known.
        unmeasured: Model calls without reported tokens.
        seconds: Seconds of completed turns.
    """

    __slots__ = ("cost", "seconds", "steps", "tokens", "tool_calls", "unmeasured", "unpriced")

    def __init__(self) -> None:
        self.steps = 0
        self.tool_calls = 0
        self.tokens = 0
        self.cost = Decimal(0)
        self.unpriced = 0
        self.unmeasured = 0
        self.seconds = 0.0

    @classmethod
    def read(cls, value: object) -> Spent:
        """Create from the result of `as_dict`; invalid values count as 0."""
        spent = cls()
        if not isinstance(value, Mapping):
            return spent
        data = dict(cast("Mapping[str, Any]", value))
        # Sessions saved by earlier versions.
        data.setdefault("steps", data.get("turns"))
        for name in ("steps", "tool_calls", "tokens", "unpriced", "unmeasured"):
            if isinstance(data.get(name), int):
                setattr(spent, name, max(0, data[name]))
        if isinstance(data.get("seconds"), (int, float)):
            spent.seconds = max(0.0, float(data["seconds"]))
        spent.cost = dollars(data.get("cost_usd")) or Decimal(0)
        return spent

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `cost_usd` as a decimal string."""
        return {
            "steps": self.steps,
            "tool_calls": self.tool_calls,
            "tokens": self.tokens,
            "cost_usd": str(self.cost),
            "unpriced": self.unpriced,
            "unmeasured": self.unmeasured,
            "seconds": round(self.seconds, 3),
        }

    def add(self, usage: Mapping[str, Any]) -> tuple[int, Decimal]:
        """Add the usage of a model call; returns its tokens and dollars, 0 if unknown."""
        tokens = total_tokens(usage) or 0
        # Servers that do not count report zeros; every request uses tokens.
        self.unmeasured += not tokens
        cost = dollars(usage.get("cost_usd"))
        self.unpriced += cost is None
        self.tokens += tokens
        self.cost += cost or Decimal(0)
        return tokens, cost or Decimal(0)

    def grow_to(self, amounts: tuple[int, Decimal]) -> None:
        """Raise tokens and dollars to at least these amounts."""
        self.tokens = max(self.tokens, amounts[0])
        self.cost = max(self.cost, amounts[1])
