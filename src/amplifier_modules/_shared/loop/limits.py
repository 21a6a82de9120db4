"""The limits of a budget, and the message when one of them is reached."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from pydantic import Field

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_support.usage import amount_text


class BudgetConfig(ModuleConfig):
    """Limits of a session, counted over all its turns; unset means unlimited.

    Attributes:
        max_steps: Model calls.
        max_tool_calls: Tool calls.
        max_tokens: Input and output tokens of all model calls.
        max_cost: US dollars of all model calls.
        max_seconds: Total duration of the turns in seconds.
    """

    max_steps: int | None = Field(default=None, gt=0)
    max_tool_calls: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    max_cost: Decimal | None = Field(default=None, gt=0)
    max_seconds: float | None = Field(default=None, gt=0)


class Reached(NamedTuple):
    """A limit that is reached.

    Attributes:
        limit: Its name in the plan.
        allowed: How much it allows.
        spent: How much was used; None if a provider does not report it.
    """

    limit: str
    allowed: int | float
    spent: int | float | None

    def __str__(self) -> str:
        unit = _UNITS[self.limit]
        if self.spent is None:
            return f"Budget: cannot enforce {self.limit}: the {unit} of a model call are unknown"
        return f"Budget reached: {amount_text(self.spent)} of {amount_text(self.allowed)} {unit}"


_UNITS = {
    "max_iterations": "model calls for one prompt",
    "max_steps": "model calls",
    "max_tool_calls": "tool calls",
    "max_tokens": "tokens",
    "max_cost": "US dollars",
    "max_seconds": "seconds",
}


def plain(amount: Any) -> int | float:
    """An amount as plain data; dollars rounded to a millionth."""
    return amount if isinstance(amount, int) else round(float(amount), 6)
