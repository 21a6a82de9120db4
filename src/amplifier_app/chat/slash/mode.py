"""`/mode` and `/approve`: which tool calls need no approval, ask or are denied, and who answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from amplifier_app.base.errors import AppError
from amplifier_app.chat.slash.layout import lines, rows
from amplifier_app.chat.slash.module_mode import listed_modes, switch_mode
from amplifier_app.chat.slash.registry import Chat, Reply, command, one_of
from amplifier_app.runtime.approvals.approval_mode import (
    MEANINGS,
    NO_MODES,
    NO_MODES_HINT,
    mode_control,
    policy_other_than_asking,
)
from amplifier_app.runtime.approvals.requests import Approvals, Policy
from amplifier_app.runtime.module_modes import OFF, active_module_mode, module_modes
from amplifier_support.session_capabilities import REMEMBERED_APPROVALS, SANDBOX

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


def _complete_mode(chat: Chat, argument: str) -> Iterable[tuple[str, str]]:
    coordinator = chat.session.session.coordinator
    listed = listed_modes(chat.session)
    return (
        *(() if mode_control(coordinator) is None else MEANINGS.items()),
        *listed,
        *([(OFF, "no mode of a module")] if listed else []),
    )


@command(
    "/mode",
    "Show or set what needs approval, or a module's mode",
    usage="[NAME|off]",
    during_turn=True,
    complete=_complete_mode,
    aliases=("/modes",),
)
async def mode(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    control = mode_control(coordinator)
    if control is not None and argument in control.modes:
        await control.set(argument)
        text = f"mode {control.mode}: {MEANINGS.get(control.mode, '')}{answered(coordinator)}"
        sandbox = SANDBOX.of(coordinator)
        if control.mode == "auto" and (sandbox is None or not sandbox.enforced):
            text += "; commands run without a sandbox, with all your rights"
        return text
    modes = () if control is None else control.modes
    of_module = module_modes(coordinator, is_trusted=chat.session.plan.project is not None)
    if not modes and not of_module:
        raise AppError(NO_MODES, hint=NO_MODES_HINT)
    if not argument:
        current = (None if control is None else control.mode, active_module_mode(coordinator))
        approval = _marked(((one, MEANINGS.get(one, "")) for one in modes), current[0])
        if not of_module:
            return approval
        others = _marked(of_module, current[1])
        return lines(approval, "", others) if modes else others
    if not of_module:
        one_of("/mode", argument, modes)
    return switch_mode(chat, argument)


def _marked(modes: Iterable[tuple[str, str]], current: str | None) -> Reply:
    return rows((f"{'*' if name == current else ' '} {name}", about) for name, about in modes)


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
