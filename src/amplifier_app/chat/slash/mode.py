"""`/mode` and `/approve`: which tool calls need no approval, ask or are denied, and who answers."""

from __future__ import annotations

from typing import Any, cast

from amplifier_app.base.errors import AppError
from amplifier_app.chat.slash.layout import rows
from amplifier_app.chat.slash.registry import Chat, Reply, command, one_of
from amplifier_app.runtime.approvals.approval_mode import (
    MEANINGS,
    NO_MODES,
    NO_MODES_HINT,
    mode_control,
    policy_other_than_asking,
)
from amplifier_app.runtime.approvals.requests import Approvals, Policy
from amplifier_core.session_capabilities import REMEMBERED_APPROVALS, SANDBOX

_ANSWERS = {
    "ask": "ask you each time",
    "allow": "allow without asking",
    "deny": "deny without asking",
    "policy": "use each request's own default",
}
_FORGET = "forget"


def answered(coordinator: Any) -> str:
    """Return how approval requests are answered, if not by asking, to be added to the mode."""
    policy = policy_other_than_asking(coordinator)
    return "" if policy is None else f"; approval requests: {_ANSWERS[policy]}"


@command(
    "/mode",
    "Show or set which tool calls need no approval",
    usage="[ask|edits|read-only|auto]",
    during_turn=True,
    complete=lambda chat, argument: MEANINGS.items(),
)
async def mode(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    control = mode_control(coordinator)
    if control is None:
        raise AppError(NO_MODES, hint=NO_MODES_HINT)
    if not argument:
        shown = [(f"{'*' if one == control.mode else ' '} {one}") for one in control.modes]
        return rows(zip(shown, (MEANINGS.get(one, "") for one in control.modes), strict=True))
    await control.set(one_of("/mode", argument, control.modes))
    text = f"mode {control.mode}: {MEANINGS.get(control.mode, '')}{answered(coordinator)}"
    sandbox = SANDBOX.of(coordinator)
    if control.mode == "auto" and (sandbox is None or not sandbox.enforced):
        text += "; commands run without a sandbox, with all your rights"
    return text


@command(
    "/approve",
    "Show or set how approval requests are answered",
    usage="[ask|allow|deny|policy|forget]",
    during_turn=True,
    complete=lambda chat, argument: (
        *_ANSWERS.items(),
        (_FORGET, "ask again about what this session allowed"),
    ),
)
async def approve(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    approvals = coordinator.approval_system
    if not isinstance(approvals, Approvals):
        raise AppError("approval requests of this session are not answered here")
    if argument == _FORGET:
        approvals.forget()
        remembered = REMEMBERED_APPROVALS.of(coordinator)
        if isinstance(remembered, set):
            remembered.clear()
        return "Calls allowed for this session ask again."
    if not argument:
        shown = (
            (f"{'*' if one == approvals.policy else ' '} {one}", _ANSWERS[one]) for one in _ANSWERS
        )
        return rows(shown)
    one_of("/approve", argument, (*_ANSWERS, _FORGET))
    approvals.policy = cast("Policy", argument)
    return f"approval requests: {_ANSWERS[argument]}"
