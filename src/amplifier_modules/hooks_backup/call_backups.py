"""Save the files of calls, and find out what the calls changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amplifier_modules._shared.files.grants import Grants
from amplifier_modules._shared.files.guarded_files import FileProblem
from amplifier_modules._shared.files.roots import OutsideRoots, PathError
from amplifier_modules.hooks_backup.calls import (
    Before,
    Call,
    Place,
    find,
    reason,
    state_at,
)
from amplifier_modules.hooks_backup.config import BackupConfig
from amplifier_modules.hooks_backup.file_state import MISSING, Seen, State
from amplifier_modules.hooks_backup.store import Full, Store

_MOST_FOLLOWED = 500
_UNKNOWN = ["?", 0, 0]
"""The state of a file that could not be read; no file has this digest."""


@dataclass(slots=True)
class _Followed:
    """A file of the turn: its last known state, and how often calls changed it."""

    state: State
    version: int = 0


class Keeper:
    """Check the files of a session's calls.

    Args:
        store: The store for copies and records.
        config: The module's settings.
        backed_up: The folders whose files are backed up.
    """

    def __init__(self, store: Store, config: BackupConfig, backed_up: Grants) -> None:
        self._store = store
        self._config = config
        self._backed_up = backed_up
        self._turn = ""
        self._prompt = ""
        self._followed: dict[str, _Followed] = {}

    def begin(self, turn: str, prompt: Callable[[], str]) -> None:
        """Set the turn the next call belongs to; `prompt` returns the prompt to record for a new one."""
        if turn != self._turn:
            self._turn, self._prompt = turn, prompt()
            self._followed = {}

    async def look_at(self, call: Call, paths: Sequence[str]) -> None:
        """Add files to `call` before it runs, with copies of existing ones.

        Raises:
            OSError: A copy cannot be written.
        """
        for path in paths:
            try:
                place = find(self._backed_up.guard, path)
            except PathError as error:
                if isinstance(error, OutsideRoots):
                    where = Place(os.path.normpath(os.path.join(self._backed_up.base, path)), [])
                    call.files.append(Before(where, MISSING, 0, reason(error)))
            except OSError:
                pass  # The tool will get the same error.
            else:
                await self._add(call, place, named=True)

    async def look_at_named(self, call: Call, paths: Sequence[str]) -> None:
        """Like `look_at`, for paths a command may name, and for the turn's files so far."""
        for path in list(self._followed)[:_MOST_FOLLOWED]:
            await self._add(call, Place(path, []), named=False)
        for path in paths:
            if not os.path.lexists(path):
                call.candidates.append(path)
                continue
            try:
                place = find(self._backed_up.guard, path)
            except (PathError, OSError):
                continue  # Most words of a command are not files to back up.
            await self._add(call, place, named=False)

    def note_intent(self, call: Call) -> None:
        """Record what `call` may change, in case the run ends before it does."""
        if call.files:
            self._write("intent", call, [before.as_entry() for before in call.files])

    async def finish(self, call: Call, *, succeeded: bool) -> list[dict[str, Any]]:
        """Find out and record what `call` has changed.

        Returns:
            An entry for each file that differs, with `path`, `before` and `after`.

        Raises:
            OSError: It cannot be recorded.
        """
        entries = [await self._changed_entry(before, succeeded) for before in call.files]
        entries += [await self._created_entry(path) for path in call.candidates]
        changed = [entry for entry in entries if entry]
        if call.files or changed:
            self._write("changes", call, changed)
        return [entry for entry in changed if not entry.get("why")]

    async def _add(self, call: Call, place: Place, *, named: bool) -> None:
        path = place.path
        if any(before.place.path == path for before in call.files):
            return
        try:
            seen = await state_at(path, self._backed_up.guard, self._limit)
        except (FileProblem, PathError):
            return  # A folder or device, which file tools do not change.
        except OSError as error:
            if named:
                call.files.append(Before(place, MISSING, 0, reason(error)))
            return
        known = self._followed.get(path)
        if known is not None and known.state == seen.state:
            # Undoing the turn does not need this copy; a fork of the session at this step does.
            self._keep(seen)
            call.files.append(Before(place, seen.state, known.version, "", named))
            return
        why = self._keep(seen)
        version = 0 if known is None else known.version
        call.files.append(Before(place, seen.state, version, why, named))

    def _keep(self, seen: Seen) -> str:
        """Save a copy; returns why there is none."""
        if seen.state.digest is None:
            return ""
        if seen.data is None:
            return f"it has {seen.state.size} bytes; the limit for copies is {self._limit} bytes"
        try:
            self._store.put(seen.state.digest, seen.data, self._turn)
        except Full as error:
            return str(error)
        return ""

    @property
    def _limit(self) -> int:
        return self._config.max_file_bytes

    async def _changed_entry(self, before: Before, succeeded: bool) -> dict[str, Any] | None:
        """The entry of a file that differs from before."""
        path = before.place.path
        if before.why and not before.state.is_there:
            # The file could not be read. If the tool has changed it, report that later.
            return {**before.as_entry(), "after": _UNKNOWN} if succeeded else None
        try:
            state = (await state_at(path, self._backed_up.guard, self._limit)).state
        except (FileProblem, PathError, OSError):
            return {**before.as_entry(), "after": _UNKNOWN}
        known = self._followed.get(path)
        earlier = before.state
        if known is not None and known.version > before.version:
            # A parallel call has changed it; this call found that state.
            earlier = known.state
        if state == earlier:
            return None
        version = before.version if known is None else known.version
        self._followed[path] = _Followed(state, version + 1)
        return {**before._replace(state=earlier).as_entry(), "after": list(state)}

    async def _created_entry(self, path: str) -> dict[str, Any] | None:
        """The entry of a file that did not exist before."""
        if not os.path.lexists(path):
            return None
        try:
            place = find(self._backed_up.guard, path)
            state = (await state_at(place.path, self._backed_up.guard, self._limit)).state
        except (FileProblem, PathError, OSError):
            return None
        known = self._followed.get(place.path)
        if not state.is_there or (known is not None and known.state == state):
            return None
        self._followed[place.path] = _Followed(state, 1)
        return {"path": place.path, "before": list(MISSING), "after": list(state)}

    def _write(self, kind: str, call: Call, files: list[dict[str, Any]]) -> None:
        about = {"turn": call.turn, "prompt": self._prompt, "call": call.id, "tool": call.tool}
        self._store.write_down({"kind": kind, **about, "files": files})
