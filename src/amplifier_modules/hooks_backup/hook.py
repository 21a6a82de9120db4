"""Back up the files tools change, and restore them."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_core.models import HookResult
from amplifier_modules._shared.files.grants import Grants
from amplifier_modules._shared.privacy.session_secrets import session_secrets
from amplifier_modules.hooks_backup import store as stores
from amplifier_modules.hooks_backup.call_backups import Keeper
from amplifier_modules.hooks_backup.calls import Call, paths_under
from amplifier_modules.hooks_backup.config import (
    BACKUP_CREATED,
    BACKUP_RESTORED,
    FOLDER,
    MODULE_ID,
    BackupConfig,
)
from amplifier_modules.hooks_backup.shell_files import named_paths
from amplifier_modules.hooks_backup.store import Store
from amplifier_modules.hooks_backup.turns import History, read_history
from amplifier_modules.hooks_backup.undo import note_for_model, pick, take_back
from amplifier_support.fields import field_of, mapping_of
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import (
    CACHE_DIR,
    SESSION_DIR,
    WORKING_DIR,
    tool_working_dir,
)

logger = logging.getLogger(__name__)

_SHORT_PROMPT = 80
_IDS = ("session_id", "turn_id", "span_id", "parent_span_id", "iteration", "tool_call_id")


class BackupHook:
    """Back up the files tools change, and restore them.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        config: The module's settings.
        above: The parent session's hook, which then keeps the copies.
    """

    def __init__(
        self, coordinator: Any, config: BackupConfig, above: BackupHook | None = None
    ) -> None:
        self._coordinator = coordinator
        self._config = config
        self._own: Path | None = None
        if above is None:
            self._store = Store(self._folder, config.max_bytes, config.max_age_days)
            backed_up = Grants(coordinator, config.paths, setting="paths")
            self._keeper = Keeper(self._store, config, backed_up)
            self._busy = asyncio.Lock()
        else:
            self._store, self._keeper, self._busy = above._store, above._keeper, above._busy
        self._calls: dict[str, Call] = {}
        self._reported_failure = False
        self._may_tell = True

    def close(self) -> None:
        """Remove what was kept for a session that is not saved."""
        if self._own is not None:
            stores.remove(self._own)

    # -- capabilities ----------------------------------------------------------------------

    async def undo(self, *, force: bool = False) -> dict[str, Any] | None:
        """Take back what the last turn did to files that is not taken back yet.

        Args:
            force: Also where a file has changed since. After an undo that left files as they are,
                take back these.

        Returns:
            `turn_id`, `prompt` and `time` (seconds of the epoch) of the turn; the paths that were
            `restored` and `removed`; `refused`, each a `path` and a `reason`; and `left`, the
            number of turns that could still be taken back. None if there was nothing to take back.

        Raises:
            OSError: The copies cannot be read, or the undo cannot be recorded.
        """
        async with self._busy:
            await self._close_calls()
            picked = pick(self._history(), force=force)
            if picked is None:
                return None
            turn, paths = picked
            outcome = await asyncio.to_thread(take_back, turn, paths, self._store, force)
            record = {"kind": "undone", "turn": turn.id, "forced": force, **outcome}
            self._store.write_down(record)
            self._may_tell = True
            left = sum(not other.undone for other in self._history().turns)
        result = {"turn_id": turn.id, "prompt": turn.prompt, "time": turn.time, **outcome}
        await self._coordinator.hooks.emit(BACKUP_RESTORED, result)
        return {**result, "left": left}

    def turns(self) -> list[dict[str, Any]]:
        """The turns that changed files, latest first.

        Each has `turn_id`, `prompt`, `time`, `undone`, and `files`: `path`; `change`, which is
        `created`, `changed` or `deleted`; and `copy`, the file with its content before, or None.

        Raises:
            OSError: The records cannot be read.
        """
        return [
            {
                "turn_id": turn.id,
                "prompt": turn.prompt,
                "time": turn.time,
                "undone": turn.undone,
                "files": [
                    {
                        "path": path,
                        "change": change.kind,
                        "copy": self._store.copy_of(change.before.digest),
                    }
                    for path, change in turn.files.items()
                ],
            }
            for turn in reversed(self._history().turns)
        ]

    def _history(self) -> History:
        return read_history(self._store.records())

    def _short_prompt(self, prompt: str) -> str:
        # Redacted before it is cut: a part of a secret may not look like one.
        redacted = Redactor(session_secrets(self._coordinator)).text(prompt)
        return " ".join(redacted.split())[:_SHORT_PROMPT]

    # -- events ----------------------------------------------------------------------------

    def on_prompt(self) -> HookResult | None:
        """Inform the model of changes undone since its last turn."""
        if not self._may_tell:
            return None
        self._may_tell = False
        try:
            unreported = self._history().unreported
            if unreported:
                self._store.write_down({"kind": "told", "turn": unreported[-1]["turn"]})
        except OSError as error:
            logger.warning("%s: cannot read the copies: %s", MODULE_ID, error)
            return None
        if not unreported:
            return None
        return HookResult(
            action="inject_context",
            context_injection=note_for_model(unreported, self._base()),
            context_injection_role="user",
        )

    async def on_tool(self, tool: str, values: Mapping[str, Any], turn: tuple[str, str]) -> None:
        """Save the files a call is about to change.

        Args:
            tool: The tool's name.
            values: The event data.
            turn: Id of its turn, and its prompt.
        """
        # Two names of the same input, of which a hook may have changed one.
        inputs = [values[key] for key in ("tool_input", "input") if key in values]
        inputs = inputs[:1] if inputs[1:] == inputs[:1] else inputs
        call_id = str(values.get("tool_call_id") or tool)
        ids = {key: values[key] for key in _IDS if key in values}
        call = Call(call_id, turn[0], tool, [], [], ids)
        async with self._busy:
            self._keeper.begin(turn[0], lambda: self._short_prompt(turn[1]))
            try:
                if tool in self._config.commands:
                    await self._keeper.look_at_named(call, self._paths_named_by(tool, inputs))
                else:
                    keys = self._config.tools[tool]
                    paths = dict.fromkeys(p for given in inputs for p in paths_under(given, keys))
                    await self._keeper.look_at(call, list(paths))
                self._calls[call_id] = call
                self._keeper.note_intent(call)
            except OSError as error:
                self._warn_once(error)

    async def on_done(self, values: Mapping[str, Any], *, ran: bool) -> None:
        """Find out what a call has changed, whether it `ran` or failed."""
        call = self._calls.pop(str(values.get("tool_call_id") or values.get("tool_name")), None)
        if call is None:
            return
        async with self._busy:
            try:
                changed = await self._keeper.finish(call, succeeded=ran and _has_succeeded(values))
            except OSError as error:
                self._warn_once(error)
                return
        for entry in changed:
            digest, _, size = entry["before"]
            facts = {"path": entry["path"], "sha256": digest, "bytes": size, "tool_name": call.tool}
            await self._coordinator.hooks.emit(BACKUP_CREATED, {**facts, **call.ids})

    async def close_calls(self) -> None:
        """Close calls whose end was never reported."""
        async with self._busy:
            await self._close_calls()

    async def _close_calls(self) -> None:
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            try:
                await self._keeper.finish(call, succeeded=False)
            except OSError as error:
                self._warn_once(error)

    def _warn_once(self, error: OSError) -> None:
        """Warn once that no copies are saved; this does not stop a tool."""
        level = logging.DEBUG if self._reported_failure else logging.WARNING
        self._reported_failure = True
        logger.log(
            level,
            "%s: cannot back up changed files, so they cannot be undone: %s",
            MODULE_ID,
            error,
        )

    # -- places ----------------------------------------------------------------------------

    def _paths_named_by(self, tool: str, inputs: list[Any]) -> list[str]:
        base = self._base()
        where = tool_working_dir(tool).of(self._coordinator)
        if callable(where):
            base = str(where())
        found: dict[str, None] = {}
        for given in inputs:
            values = mapping_of(given)
            command = values.get(self._config.commands[tool])
            folder = values.get("working_directory") or values.get("cwd") or "."
            if isinstance(command, str) and isinstance(folder, str):
                found |= dict.fromkeys(named_paths(command, os.path.join(base, folder)))
        return list(found)

    def _base(self) -> str:
        return WORKING_DIR.of(self._coordinator) or os.getcwd()

    def _folder(self, make: bool) -> Path | None:
        """The folder of this session's copies; for a session that is not saved only if `make`."""
        session = SESSION_DIR.of(self._coordinator)
        if session:
            return Path(session) / FOLDER
        if self._own is None and make:
            cache = CACHE_DIR.of(self._coordinator)
            if cache:
                folder = Path(cache) / FOLDER
                stores.remove_older(folder, self._config.max_age_days)
                self._own = folder / os.urandom(8).hex()
            else:
                self._own = Path(tempfile.mkdtemp(prefix="amplifier-backups-"))
        return self._own


def _has_succeeded(values: Mapping[str, Any]) -> bool:
    result = values.get("tool_result", values.get("result"))
    return bool(field_of(result, "success", True))
