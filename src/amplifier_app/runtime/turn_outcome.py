"""What a turn that raised nothing counts as, and what to do about one without an answer."""

from __future__ import annotations

from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.runtime.turn import LimitReached, TurnResult

_RAISED_BY = {"max_tokens": "--max-tokens-total N", "max_cost": "--max-cost DOLLARS"}
_UNITS = {
    "max_turns": "model calls",
    "max_tool_calls": "tool calls",
    "max_tokens": "tokens",
    "max_cost": "US dollars",
    "max_seconds": "seconds",
}
_NOT_TOLD = {
    "max_cost": "the price of its model is not known",
    "max_tokens": "its provider does not tell how many tokens a request takes",
}


def outcome_of_turn(turn: TurnResult, denied: str | None, session_id: str | None) -> Outcome:
    """The outcome of a turn.

    Args:
        turn: What came out of it.
        denied: The first question that was answered no, if one was.
        session_id: The session to resume; None if it is not saved.
    """
    go_on = f"Go on with: amplifier run --resume {session_id}" if session_id else None
    if turn.status == "cancelled":
        return Outcome(Ending.INTERRUPTED, "the turn was stopped", go_on)
    if turn.status == "error":
        return Outcome(Ending.ERROR, "the orchestrator reports an error", go_on)
    if turn.status == "incomplete":
        return _incomplete(turn, session_id, go_on)
    if denied is not None:
        hint = "Allow it with --approve allow, or run on a terminal to be asked."
        return Outcome(Ending.DENIED, f"approval was denied: {denied}", hint)
    if not turn.response.strip():
        return _nothing_shown(turn, go_on)
    return OK


def _nothing_shown(turn: TurnResult, go_on: str | None) -> Outcome:
    if turn.is_hidden:
        message = "every block of the answer is marked as not for users"
        return Outcome(Ending.PROVIDER, message, "Show all of it with --show internal.")
    return Outcome(Ending.PROVIDER, "the answer is empty", go_on)


def _incomplete(turn: TurnResult, session_id: str | None, go_on: str | None) -> Outcome:
    if turn.reason == "denied":
        return Outcome(Ending.DENIED, turn.response or "a hook denied the turn", go_on)
    if turn.reason == "content_filter":
        return Outcome(Ending.PROVIDER, "the provider's content filter cut the answer off", go_on)
    if turn.reason == "empty":
        message = "the model's answer is empty: it has neither text nor tool calls"
        return Outcome(Ending.PROVIDER, message, go_on)
    if turn.reason == "length":
        message = "the answer is cut off at the model's output limit"
        return Outcome(Ending.BUDGET, message, go_on)
    if turn.limit is not None:
        return Outcome(Ending.BUDGET, _told(turn.limit), _raise(turn.limit, session_id))
    if turn.reason == "no_progress":
        message = turn.response or "the model makes the same tool calls again and again"
        return Outcome(Ending.BUDGET, f"stopped without a final answer. {message}", go_on)
    if turn.reason == "max_steps":
        message = "stopped at the most steps a turn may take (max_steps of its orchestrator)"
        return Outcome(Ending.BUDGET, message, go_on)
    message = f"stopped after {turn.turns} model calls without a final answer"
    return Outcome(Ending.BUDGET, message, _joined("Allow more with --max-turns.", go_on))


def _told(limit: LimitReached) -> str:
    where = f"session.budget.{limit.name}"
    if limit.spent is None:
        why = _NOT_TOLD.get(limit.name, "what was used is not known")
        return f"{where} cannot be kept: {why}"
    unit = _UNITS.get(limit.name, "")
    used = f"{_number(limit.spent)} of {_number(limit.allowed)} {unit}".rstrip()
    return f"the session's budget is used up: {used} ({where})"


def _raise(limit: LimitReached, session_id: str | None) -> str:
    """How to go on."""
    if limit.spent is None:
        out = f"--set session.budget.{limit.name}=null"
        return f"Take it out ({out}) and set another limit, such as max_turns or max_seconds."
    option = _RAISED_BY.get(limit.name, f"--set session.budget.{limit.name}=N")
    if session_id is None:
        return f"Allow more with {option}."
    return f"Allow more, then go on with: amplifier run --resume {session_id} {option}"


def _number(amount: float) -> str:
    if isinstance(amount, int):
        return f"{amount:,}"
    return f"{amount:,.4f}".rstrip("0").rstrip(".")


def _joined(*sentences: str | None) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
