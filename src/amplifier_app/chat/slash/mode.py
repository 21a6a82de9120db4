"""`/mode`: which tool calls are free, ask or are denied."""

from __future__ import annotations

from amplifier_app.base.errors import AppError
from amplifier_app.chat.slash.layout import rows
from amplifier_app.chat.slash.registry import Chat, Reply, command, one_of
from amplifier_app.runtime.approval_mode import MEANINGS, NO_MODES, NO_MODES_HINT, mode_control


@command(
    "/mode",
    "Show or set which tool calls need no approval",
    usage="[ask|edits|read-only|auto]",
    during_turn=True,
    complete=lambda chat, argument: MEANINGS.items(),
)
async def mode(chat: Chat, argument: str) -> Reply:
    control = mode_control(chat.session.session.coordinator)
    if control is None:
        raise AppError(NO_MODES, hint=NO_MODES_HINT)
    if not argument:
        shown = [(f"{'*' if one == control.mode else ' '} {one}") for one in control.modes]
        return rows(zip(shown, (MEANINGS.get(one, "") for one in control.modes), strict=True))
    await control.set(one_of("/mode", argument, control.modes))
    return f"mode {control.mode}: {MEANINGS.get(control.mode, '')}"
