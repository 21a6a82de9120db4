"""The limits of a session's budget, in words."""

from __future__ import annotations

from decimal import Decimal

from amplifier_support.usage import amount_text

BUDGET_LIMITS = {
    "max_steps": ("step budget", "{}"),
    "max_tool_calls": ("tool call budget", "{}"),
    "max_tokens": ("token budget", "{}"),
    "max_cost": ("cost budget", "${}"),
    "max_seconds": ("time budget", "{} s"),
}
"""Key under `session.budget` → what to call the limit, and the form of its amounts."""

_LIMITS = {**BUDGET_LIMITS, "max_iterations": ("step limit of the prompt", "{}")}


def name_of(limit: str) -> str:
    """What to call a limit: "cost budget"."""
    return _LIMITS.get(limit, ("budget", ""))[0]


def describe_amount(limit: str, amount: float) -> str:
    """An amount of what a limit counts: "$1.50", "2,000"."""
    form, text = _LIMITS.get(limit, ("", "{}"))[1], amount_text(amount)
    # Cents have two digits: $0.10.
    return form.format(f"{text}0" if limit == "max_cost" and text[-2:-1] == "." else text)


def describe_reached(limit: str, allowed: float, spent: float) -> str:
    """That a limit is reached: "cost budget reached: used $2.03, limit $2"."""
    amounts = f"used {describe_amount(limit, spent)}, limit {describe_amount(limit, allowed)}"
    return f"{name_of(limit)} reached: {amounts}"


def assignment(limit: str, amount: float | None) -> str:
    """The change of a plan that sets a limit, or removes it with None."""
    # Without an exponent, which YAML reads as text: 1e-06.
    value = "null" if amount is None else f"{Decimal(str(amount)):f}"
    return f"session.budget.{limit}={value}"
