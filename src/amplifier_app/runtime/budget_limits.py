"""The limits of a session's budget: in words, and in a chat as a question with a warning before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from amplifier_app.runtime.observers.observer import Renderer
from amplifier_core.models import HookResult
from amplifier_support.session_capabilities import BUDGET, SessionBudget
from amplifier_support.usage import amount_text

BUDGET_LIMITS = {
    "max_steps": ("step budget", "{}"),
    "max_tool_calls": ("tool call budget", "{}"),
    "max_tokens": ("token budget", "{}"),
    "max_cost": ("cost budget", "${}"),
    "max_seconds": ("time budget", "{} s"),
}
"""Key under `session.budget` → what to call the limit, and the form of its amounts."""

SET_PRICES = "Set 'prices', or 'list_prices: true' and a 'model', in the config of the provider"
"""The way to make the cost of a model known."""

_LIMITS = {**BUDGET_LIMITS, "max_iterations": ("step limit of the prompt", "{}")}


def _describe_limit(limit: str) -> str:
    """Return the name of a limit: "cost budget"."""
    return _LIMITS.get(limit, ("budget", ""))[0]


def _describe_amount(limit: str, amount: float) -> str:
    """An amount of what a limit counts: "$1.50", "2,000"."""
    form, text = _LIMITS.get(limit, ("", "{}"))[1], amount_text(amount)
    # Cents have two digits: $0.10.
    return form.format(f"{text}0" if limit == "max_cost" and text[-2:-1] == "." else text)


def describe_reached(limit: str, allowed: float, spent: float) -> str:
    """That a limit is reached: "cost budget reached: used $2.03, limit $2"."""
    amounts = f"used {_describe_amount(limit, spent)}, limit {_describe_amount(limit, allowed)}"
    return f"{_describe_limit(limit)} reached: {amounts}"


def assignment(limit: str, amount: float | None) -> str:
    """The change of a plan that sets a limit, or removes it with None."""
    # Without an exponent, which YAML reads as text: 1e-06.
    value = "null" if amount is None else f"{Decimal(str(amount)):f}"
    return f"session.budget.{limit}={value}"


EVENT = "budget:reached"
WARN_AT = 0.8
"""Fraction of a limit at which the user is warned."""

_ANSWER_SECONDS = 24 * 3600.0
_USED = {
    "max_steps": "steps",
    "max_tool_calls": "tool_calls",
    "max_tokens": "tokens",
    "max_cost": "cost_usd",
    "max_seconds": "seconds",
}
"""Name of a limit → its key in the usage of a budget."""


def ask_at_limits(coordinator: Any, renderer: Renderer, *, is_sub_session: bool) -> None:
    """Ask the user to raise a limit that is reached, and warn once before.

    A sub-session asks for the limits of the sessions above it only: its own are part of its task.
    """

    async def on_reached(event: str, data: dict[str, Any]) -> HookResult | None:
        if is_sub_session and not data.get("inherited"):
            return None
        limit, allowed, spent = data["limit"], data["allowed"], data["spent"]
        more = increment(allowed, spent)
        question = (
            f"{describe_reached(limit, allowed, spent)}. "
            f"Continue with {_describe_amount(limit, more)} more?"
        )
        asked = HookResult(
            action="ask_user",
            approval_prompt=f"{question[0].upper()}{question[1:]}",
            approval_options=["Allow", "Deny"],
            approval_timeout=_ANSWER_SECONDS,
            approval_default="deny",
        )
        answer = await coordinator.process_hook_result(asked, event, "app-budget")
        if answer.action != "continue":
            return None
        return HookResult(action="modify", data={**data, "allowed": round(allowed + more, 6)})

    coordinator.hooks.register(EVENT, on_reached, name="app-budget")
    budget = BUDGET.of(coordinator)
    if budget is not None and hasattr(budget, "allowed") and not is_sub_session:
        _warn_before(budget, renderer)
    if not is_sub_session:
        _warn_before_last_steps(coordinator, renderer)


def increment(allowed: float, spent: float) -> int | float:
    """Return the amount to add to a limit: half of it, or as many halves as usage needs."""
    half = max(1, allowed // 2) if isinstance(allowed, int) else allowed / 2
    return half * (int(max(0, spent - allowed) // half) + 1)


def _warn_before(budget: SessionBudget, renderer: Renderer) -> None:
    before: dict[str, float] = {}

    def on_change() -> None:
        used = budget.as_dict()
        for limit, allowed in budget.allowed.items():
            amount = _number(used, _USED.get(limit, ""))
            earlier, before[limit] = before.get(limit, 0.0), amount
            if not earlier < WARN_AT * allowed <= amount < allowed:
                continue
            _warn(renderer, limit, amount, allowed)

    budget.listen(on_change)


def _warn_before_last_steps(coordinator: Any, renderer: Renderer) -> None:
    """Warn of the limit of model calls for one prompt, if the plan sets it."""
    allowed: Any = coordinator.config
    for key in ("session", "orchestrator", "config", "max_iterations"):
        allowed = allowed.get(key) if isinstance(allowed, Mapping) else None
    if not isinstance(allowed, int):
        return
    warned_at = math.ceil(WARN_AT * allowed)

    def on_request(event: str, data: dict[str, Any]) -> None:
        if data.get("iteration") == warned_at < allowed and not data.get("purpose"):
            _warn(renderer, "max_iterations", warned_at, allowed)

    coordinator.hooks.register("provider:request", on_request, name="app-budget")


def _warn(renderer: Renderer, limit: str, amount: float, allowed: float) -> None:
    share = f"{100 * amount / allowed:.0f} % of the {_describe_limit(limit)} is used"
    amounts = f"{_describe_amount(limit, amount)} of {_describe_amount(limit, allowed)}"
    renderer.notice(f"{share}: {amounts}", "warning", "session")


def _number(used: Mapping[str, Any], key: str) -> float:
    try:
        return float(used.get(key) or 0)
    except (TypeError, ValueError):
        return 0.0
