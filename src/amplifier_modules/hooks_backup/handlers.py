"""The event handlers; the rest is imported when a tool is about to change a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amplifier_core.events import EXECUTION_END, PROMPT_SUBMIT, TOOL_ERROR, TOOL_POST, TOOL_PRE
from amplifier_modules._shared.module.declaration import Listening
from amplifier_modules.hooks_backup.config import (
    BACKUP_EVENTS,
    FOLDER,
    INDEX,
    MODULE_ID,
    BackupConfig,
)
from amplifier_support.fields import to_mapping
from amplifier_support.session_capabilities import BACKUPS, SESSION_DIR, UNDO, UNDO_LIST

if TYPE_CHECKING:
    from amplifier_core.models import HookResult
    from amplifier_modules.hooks_backup.hook import BackupHook

_MAX_PROMPT = 10_000


class BackupHandlers:
    """The handlers of one session.

    Attributes:
        turn: Id of the current turn, and its prompt.
        above: The handlers of the parent session; None if there is none.
    """

    def __init__(self, coordinator: Any, config: BackupConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self.turn: tuple[str, str] = (_new_turn_id(), "")
        above = BACKUPS.of(coordinator)
        self.above: BackupHandlers | None = above if isinstance(above, BackupHandlers) else None
        self._opened: BackupHook | None = None
        self._listening = Listening(coordinator, MODULE_ID, config.priority)

    def listen(self) -> None:
        """Start handling tool and prompt events, and register the capabilities."""
        coordinator = self._coordinator
        if self.above is None:
            BACKUPS.register(coordinator, self)
        UNDO.register(coordinator, self.undo)
        UNDO_LIST.register(coordinator, self.turns)
        self._listening.on(PROMPT_SUBMIT, self._on_prompt)
        self._listening.on(TOOL_PRE, self._on_tool)
        self._listening.on(TOOL_POST, self._on_done)
        self._listening.on(TOOL_ERROR, self._on_done)
        self._listening.on(EXECUTION_END, self._on_end)

    def close(self) -> None:
        """Stop listening; remove the copies of a session that is not saved."""
        self._listening.close()
        if self._opened is not None:
            self._opened.close()

    @property
    def hook(self) -> BackupHook:
        """The hook that does the work."""
        if self._opened is None:
            from amplifier_modules.hooks_backup.hook import BackupHook

            above = None if self.above is None else self.above.hook
            self._opened = BackupHook(self._coordinator, self._config, above)
        return self._opened

    async def undo(self, *, force: bool = False) -> dict[str, Any] | None:
        """See `BackupHook.undo`."""
        return await self.hook.undo(force=force)

    def turns(self) -> list[dict[str, Any]]:
        """See `BackupHook.turns`."""
        return self.hook.turns()

    def current_turn(self, ids: Mapping[str, Any]) -> tuple[str, str]:
        """The turn of a call with these ids: in a sub-session, that of the parent session."""
        if self.above is not None:
            return self.above.current_turn({})
        return str(ids.get("turn_id") or self.turn[0]), self.turn[1]

    # -- events ----------------------------------------------------------------------------

    # None means no decision: creating the first HookResult would cost a run its validator.

    async def _on_prompt(self, event: str, data: Any) -> HookResult | None:
        values = to_mapping(data)
        prompt = str(values.get("prompt") or "")[:_MAX_PROMPT]
        self.turn = (str(values.get("turn_id") or _new_turn_id()), prompt)
        if self.above is not None or (self._opened is None and not self._has_records()):
            return None
        return self.hook.on_prompt()

    def _has_records(self) -> bool:
        session = SESSION_DIR.of(self._coordinator)
        return bool(session) and os.path.exists(os.path.join(session, FOLDER, INDEX))

    async def _on_tool(self, event: str, data: Any) -> None:
        values = to_mapping(data)
        tool = str(values.get("tool_name"))
        if tool in self._config.tools or tool in self._config.commands:
            await self.hook.on_tool(tool, values, self.current_turn(values))

    async def _on_done(self, event: str, data: Any) -> None:
        if self._opened is not None:
            await self._opened.on_done(to_mapping(data), ran=event == TOOL_POST)

    async def _on_end(self, event: str, data: Any) -> None:
        if self._opened is not None:
            await self._opened.close_calls()


def _new_turn_id() -> str:
    return os.urandom(16).hex()


async def mount(coordinator: Any, settings: BackupConfig) -> Callable[[], None]:
    """Keep copies at every `tool:pre`; settings as in `BackupConfig`.

    Registers the capabilities `backup.undo` and `backup.list`.

    Returns:
        A cleanup function that removes the hook.
    """
    handlers = BackupHandlers(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(BACKUP_EVENTS))
    handlers.listen()
    return handlers.close
