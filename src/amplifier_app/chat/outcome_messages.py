"""Messages of the chat about a turn or a command that has ended without success."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.runtime import describe
from amplifier_app.runtime.continuation import CONTINUE
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.turn_outcome import outcome_of_turn

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_NEXT_KEYS = {
    Ending.AUTHENTICATION: " · /provider",
    Ending.UNAVAILABLE: " · /model · /provider",
    Ending.PROVIDER: " · /model · /provider",
}
"""Failure of a turn → advice besides trying again."""


RETRY = "/retry"
"""The command that sends a prompt again."""


def show_outcome(renderer: Renderer, outcome: Outcome, level: Level) -> None:
    """Show what happened, with its hint."""
    hint = f"\n  {outcome.hint}" if outcome.hint else ""
    renderer.notice(f"{outcome.message}{hint}", level, "chat")


def show_failure(renderer: Renderer, outcome: Outcome, key: str, *, has_history: bool) -> None:
    """Show why a turn failed, and what the user can do next.

    Apart from commands, only keys that type nothing are offered: a letter would be taken from the
    next prompt.

    Args:
        renderer: Shows it.
        outcome: How the turn ended.
        key: What sends the prompt again.
        has_history: Whether Up recalls the prompt.
    """
    edit = " · Up edits it" if has_history else ""
    following = f"{key} tries again{edit}{_NEXT_KEYS.get(outcome.ending, '')}"
    # Hints of the command line name options; here commands do the same.
    with_options = outcome.ending in (Ending.UNAVAILABLE, Ending.PROVIDER)
    hints = [outcome.hint] if outcome.hint and not with_options else []
    if outcome.retry_after is not None and outcome.retry_after >= 1:
        hints.append(f"Retry in {describe.duration(outcome.retry_after)} (provider's request).")
    hint = "\n  ".join([*hints, "Your prompt is kept.", following])
    show_outcome(renderer, outcome._replace(hint=hint), "error")


def show_unfinished(renderer: Renderer, key: str, *, begun: bool) -> None:
    """Show that the last prompt of a session was not finished, and what `key` does.

    Args:
        renderer: Shows it.
        key: What sends the prompt again, or continues it.
        begun: Whether the model had begun to answer.
    """
    text = f"unfinished; {key} continues it" if begun else f"unanswered; {key} sends it again"
    renderer.notice(f"the last prompt is {text}", "info", "chat")


def show_ending(session: OpenSession, renderer: Renderer, key: str) -> str | None:
    """Show how a turn without an error ended, if not well, and what `key` sends; return that."""
    turn = session.turn
    if turn.status == "cancelled":
        begun = bool(turn.response or turn.tools)
        stopped = "stopped" if begun else "stopped before an answer"
        following = "continues" if begun else "sends the prompt again"
        renderer.notice(f"{stopped}; {key} {following}", "warning", "chat")
        return CONTINUE if begun else RETRY
    # The hint on resuming helps only at a limit, which a new run can raise.
    limited = turn.limit is not None and session.is_saved
    # The line of a denied call says so, but not which rule is missing.
    unapproved = tuple(call for call in turn.denied if call.by_default)
    ended = turn._replace(denied=unapproved)
    outcome = outcome_of_turn(ended, None, session.id if limited else None)
    if outcome.ending is Ending.OK:
        return None
    continues = turn.status == "incomplete" and turn.limit is None and turn.reason != "denied"
    if continues:
        outcome = outcome._replace(hint=f"{key} continues")
    show_outcome(renderer, outcome, "warning")
    return CONTINUE if continues else None
