"""Map a turn that raised no exception to an outcome, with a hint if the answer is missing."""

from __future__ import annotations

from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.base.sanitize import one_line
from amplifier_app.plan.tree.problems import as_clause
from amplifier_app.runtime.budget_limits import SET_PRICES, describe_reached
from amplifier_app.runtime.describe import count
from amplifier_app.runtime.turns.turn import DeniedCall, LimitReached, TurnResult
from amplifier_app.sessions.conversation import CONTINUE
from amplifier_app.sessions.summary import short_id

_RAISE_OPTIONS = {"max_tokens": "--max-tokens-total N", "max_cost": "--max-cost DOLLARS"}
_NO_ANSWER = "the model ended without an answer"

_INCOMPLETE = {
    "content_filter": (Ending.PROVIDER, "the provider's content filter stopped the answer"),
    "empty": (Ending.PROVIDER, _NO_ANSWER),
    "length": (Ending.BUDGET, "the answer was cut off at the model's output limit"),
    "max_steps": (Ending.BUDGET, "stopped at the step limit of the orchestrator (max_steps)"),
}
"""The outcome of an incomplete turn by its reason."""

_UNKNOWN_SPENT = {
    "max_cost": "no price known for this model",
    "max_tokens": "the provider does not report token usage",
}


def resume_command(session_id: str, *options: str) -> str:
    """Return the command that goes on with the last prompt, whether stdin is a terminal or not."""
    return " ".join(["amplifier run --resume", short_id(session_id), *options, f'"{CONTINUE}"'])


def outcome_of_turn(turn: TurnResult, denied: Outcome | None, session_id: str | None) -> Outcome:
    """Return the outcome of a turn.

    Args:
        turn: The result of the turn.
        denied: The outcome if an approval request was denied in it; None if none was.
        session_id: The session to resume; None if it is not saved.
    """
    resume = f"Resume with: {resume_command(session_id)}" if session_id else None
    if turn.status == "cancelled":
        return Outcome(Ending.INTERRUPTED, "the prompt was stopped", resume)
    if turn.status == "error":
        return Outcome(Ending.ERROR, "the orchestrator reported an error", resume)
    if turn.limit is not None:
        # Also if the limit was reached by what an orchestrator did after it had answered.
        return Outcome(Ending.BUDGET, _describe(turn.limit, turn), _raise(turn.limit, session_id))
    if turn.status == "incomplete":
        return _incomplete(turn, resume)
    if turn.is_proposal:
        # What was denied before it is part of what it proposes.
        return OK
    if denied is not None:
        return denied
    unapproved = next((call for call in turn.denied if call.by_default), None)
    if unapproved is not None:
        rules = f": amplifier policy suggest {short_id(session_id)}" if session_id else ""
        hint = f"Add rules to 'approvals' for what should be allowed{rules}."
        return Outcome(Ending.DENIED, f"no rule allowed a call of '{unapproved.name}'", hint)
    refused = next((call for call in turn.denied if not (call.by_tool or call.by_sandbox)), None)
    if refused is not None:
        return _refused(refused)
    return _nothing_shown(turn, resume) if not turn.response.strip() else OK


def _refused(call: DeniedCall) -> Outcome:
    """Return the outcome of a turn in which a mode, a rule or a hook denied a call."""
    who = f" of the sub-agent '{call.agent}'" if call.agent else ""
    why = call.decision or (call.reason or "by a hook of the plan").removeprefix("denied: ")
    message = f"a call of '{call.name}'{who} was denied: {one_line(why, 200)}"
    return Outcome(Ending.DENIED, message, "--output json lists every denied call in 'denied'.")


def _nothing_shown(turn: TurnResult, resume: str | None) -> Outcome:
    if turn.is_hidden:
        message = "every block of the answer is marked as hidden from users"
        return Outcome(Ending.PROVIDER, message, "Show all blocks with --show internal.")
    return Outcome(Ending.PROVIDER, _NO_ANSWER, resume)


def _incomplete(turn: TurnResult, resume: str | None) -> Outcome:
    if turn.reason == "denied":
        return Outcome(Ending.DENIED, turn.response or "a hook denied the turn", resume)
    if turn.reason == "no_progress":
        message = turn.response or "the model repeats the same tool calls"
        return Outcome(Ending.BUDGET, f"stopped without a final answer. {message}", resume)
    if turn.reason in _INCOMPLETE:
        return Outcome(*_INCOMPLETE[turn.reason], resume)
    message = f"stopped after {count(turn.steps, 'model call')} without a final answer"
    raise_it = "Raise the limit with --max-steps."
    return Outcome(Ending.BUDGET, message, f"{raise_it} {resume}" if resume else raise_it)


def _describe(limit: LimitReached, turn: TurnResult) -> str:
    where = f"session.budget.{limit.name}"
    if limit.spent is None:
        why = _UNKNOWN_SPENT.get(limit.name, "usage is unknown")
        model = limit.model or ", ".join(map(repr, turn.answered_models))
        why = why.replace("this model", one_line(model, 200) or "this model")
        return f"cannot enforce {where}: {why}"
    return f"{describe_reached(limit.name, limit.allowed, limit.spent)} ({where})"


def _raise(limit: LimitReached, session_id: str | None) -> str:
    """Return a hint on how to raise the limit."""
    if limit.spent is None:
        unset = f"--set session.budget.{limit.name}=null"
        remove = f"Remove this limit ({unset}) and set another, such as max_steps or max_seconds."
        return f"{SET_PRICES}, or {as_clause(remove)}" if limit.name == "max_cost" else remove
    option = _RAISE_OPTIONS.get(limit.name, f"--set session.budget.{limit.name}=N")
    if session_id is None:
        return f"Raise it with {option}."
    return f"Raise it and resume with: {resume_command(session_id, option)}"
