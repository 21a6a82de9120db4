"""Back up the files tools change, and restore them."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from amplifier_core.models import HookResult
from amplifier_modules._shared.files import (
    FileProblem,
    Grants,
    Location,
    OutsideRoots,
    PathError,
    PathGuard,
    write_whole,
)
from amplifier_modules._shared.privacy import session_redactor
from amplifier_modules.hooks_backup.config import (
    BACKUP_CREATED,
    BACKUP_RESTORED,
    FOLDER,
    MODULE_ID,
    BackupConfig,
)
from amplifier_modules.hooks_backup.store import (
    MISSING,
    Change,
    Full,
    History,
    Moved,
    Seen,
    State,
    Store,
    Turn,
    exactly,
    look,
    look_now,
    read_history,
    remove_older,
)
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import (
    CACHE_DIR,
    SESSION_DIR,
    WORKING_DIR,
    tool_working_dir,
)
from amplifier_support.text import cut_text, printable_in_tags

logger = logging.getLogger(__name__)


# -- the files of one tool call, before and after it -------------------------------------


class Place(NamedTuple):
    """The place of a file, now or later: its absolute path without links, and folders to be
    created.
    """

    path: str
    folders: list[str]


class Before(NamedTuple):
    """A file before a call.

    Attributes:
        place: Where it is.
        state: Its state.
        version: How often calls of the turn had changed it; see `Call`.
        why: Why it has no copy; empty if it has one, or needs none.
    """

    place: Place
    state: State
    version: int
    why: str = ""

    def as_entry(self) -> dict[str, Any]:
        """The file as an entry of a record."""
        entry: dict[str, Any] = {"path": self.place.path, "before": list(self.state)}
        if self.place.folders:
            entry["folders"] = self.place.folders
        if self.why:
            entry["why"] = self.why
        return entry


class Call(NamedTuple):
    """A running call.

    Attributes:
        id: Its id.
        turn: The turn's id.
        tool: The tool's name.
        files: The files it may change, in their state before.
        candidates: Paths without a file, where the call may create one.
        ids: The ids its events carry.
    """

    id: str
    turn: str
    tool: str
    files: list[Before]
    candidates: list[str]
    ids: dict[str, Any]


def _paths_under(values: object, keys: Iterable[str]) -> Iterator[str]:
    """The texts under `keys` in a tool's input, also in nested lists and objects."""
    names = frozenset(keys)

    def walk(value: object, named: bool) -> Iterator[str]:
        if isinstance(value, str):
            if named and value and "\0" not in value:
                yield value
        elif isinstance(value, list):
            for item in cast("list[object]", value):
                yield from walk(item, named)
        elif isinstance(value, Mapping):
            for key, item in cast("Mapping[object, object]", value).items():
                yield from walk(item, key in names)

    return walk(values, False)


def find(guard: PathGuard, path: str) -> Place:
    """Find where the file of a path is or would be created, following links inside allowed folders.

    Raises:
        PathError: It is outside them, or not a path.
        OSError: It cannot be determined.
    """
    absolute = os.path.normpath(os.path.join(guard.base, path))
    behind: list[str] = []
    while True:
        try:
            with guard.locate(absolute) as location:
                real = location.path
            break
        except FileNotFoundError:
            absolute, name = os.path.split(absolute)
            if not name:
                raise
            behind.append(name)
    folders: list[str] = []
    for name in reversed(behind):
        folders.append(real)
        real = os.path.join(real, name)
    return Place(real, folders)


async def _state_at(path: str, guard: PathGuard, max_bytes: int) -> Seen:
    """The state of the file at a path, even if a folder in the path is missing.

    Raises:
        FileProblem: There is something other than a file.
        PathError: It is outside the allowed folders.
        OSError: It cannot be read.
    """
    try:
        location = guard.locate(path)
    except (FileNotFoundError, NotADirectoryError):
        return Seen(MISSING)
    with location:
        if location.path != path:
            raise OutsideRoots(f"{path!r} now leads through a link")
        return await look(location, max_bytes)


def reason(error: Exception) -> str:
    """Describe in a few words why a file could not be checked or saved."""
    if isinstance(error, OutsideRoots):
        return "it is outside the backed-up folders ('paths' in the config of hooks-backup)"
    return getattr(error, "strerror", None) or str(error)


# -- back up the files tools change, and restore them ------------------------------------


_MAX_FOLLOWED = 500
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
        for path in list(self._followed)[:_MAX_FOLLOWED]:
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
            seen = await _state_at(path, self._backed_up.guard, self._limit)
        except (FileProblem, PathError):
            return  # A folder or device, which file tools do not change.
        except OSError as error:
            if named:
                call.files.append(Before(place, MISSING, 0, reason(error)))
            return
        known = self._followed.get(path)
        why = self._keep(seen)
        if known is not None and known.state == seen.state:
            # Undoing the turn does not need this copy; a fork of the session at this step does.
            why = ""
        version = 0 if known is None else known.version
        call.files.append(Before(place, seen.state, version, why))

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
            state = (await _state_at(path, self._backed_up.guard, self._limit)).state
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
            state = (await _state_at(place.path, self._backed_up.guard, self._limit)).state
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


MAX_WORDS = 500
MAX_FILES = 200
_LONGEST = 1024
_MAX_READ = 8192
_OPERATORS = frozenset("();<>|&")
_WILD = frozenset("*?[")


def named_paths(command: str, base: str) -> list[str]:
    """Absolute paths that words of `command` may name, existing or not.

    Handles plain words, `--option=path`, redirections, wildcards within one folder, and `cd`. Files
    a program changes without being named are missed.

    Args:
        command: The command line.
        base: Absolute folder it runs in.
    """
    paths: dict[str, None] = {}
    folders = [base]
    words = _words(command)
    for before, word in zip(["", *words], words, strict=False):
        if before in ("cd", "pushd"):
            folders.append(os.path.join(folders[-1], os.path.expanduser(word)))
        for part in {word, word.partition("=")[2]}:
            if not part or part.startswith("-") or len(part) > _LONGEST or "\0" in part:
                continue
            for path in _paths(os.path.expanduser(part), folders):
                paths[path] = None
                if len(paths) >= MAX_FILES:
                    return list(paths)
    return list(paths)


def _paths(word: str, folders: list[str]) -> Iterator[str]:
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, word))
        if _WILD.isdisjoint(word):
            yield path
        elif _WILD.isdisjoint(os.path.dirname(path)):
            for number, match in enumerate(glob.iglob(path)):
                if number >= MAX_FILES:
                    break
                yield match


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command[:_MAX_READ], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if not _OPERATORS.issuperset(word):
                words.append(word)
            if len(words) >= MAX_WORDS:
                break
    except ValueError:
        # An unclosed quote, as in the text of a here-document: the rest is not read.
        pass
    return words


_LARGEST_SAVED = 64 * 1024 * 1024
_SHOWN_FILES = 50


class Refused(Exception):
    """A file is left alone; the message says why."""


def pick(history: History, *, force: bool) -> tuple[Turn, list[str]] | None:
    """The turn to undo and its paths, or None.

    With `force`, files the last undo left alone come first.
    """
    last = history.last_undone
    if force and last is not None and last.refused:
        return last, [path for path in last.refused if path in last.files]
    waiting = [turn for turn in history.turns if not turn.undone]
    return (waiting[-1], list(waiting[-1].files)) if waiting else None


def take_back(turn: Turn, paths: Sequence[str], store: Store, force: bool) -> dict[str, list[Any]]:
    """Restore files to their state before `turn`, each independently of the others.

    Returns:
        `restored` and `removed`, lists of paths; `refused`, each a `path` and a `reason`; `saved`,
        each a `path` and the `sha256` of the content that was replaced.

    Raises:
        OSError: A copy cannot be read.
    """
    outcome: dict[str, list[Any]] = {"restored": [], "removed": [], "refused": [], "saved": []}
    for path in paths:
        change = turn.files[path]
        try:
            saved = _take_back(path, change, store, turn.id, force)
        except (Refused, Moved, FileProblem, PathError) as error:
            outcome["refused"].append({"path": path, "reason": str(error)})
        except OSError as error:
            outcome["refused"].append({"path": path, "reason": reason(error)})
        else:
            outcome["restored" if change.before.is_there else "removed"].append(path)
            if saved:
                outcome["saved"].append({"path": path, "sha256": saved})
    created = {folder for path in outcome["removed"] for folder in turn.files[path].folders}
    _remove_folders(sorted(created, key=len, reverse=True))
    return outcome


def _take_back(path: str, change: Change, store: Store, turn: str, force: bool) -> str | None:
    """Restore one file; returns the digest of the replaced content, if it may be missed.

    Raises:
        Refused: The file is left alone.
    """
    if change.why:
        raise Refused(f"no copy was kept: {change.why}")
    try:
        location = exactly(path)
    except (FileNotFoundError, NotADirectoryError):
        if not change.before.is_there:
            return None
        location = exactly(path, create_parents=True)
    with location:
        now = look_now(location, _LARGEST_SAVED)
        if now.is_(change.before):
            return None
        objection = _objection(change, now)
        if objection and not force:
            raise Refused(objection)
        saved = _save(now, store, turn) if objection else None
        _put_back(location, change, store)
    return saved


def _objection(change: Change, now: Seen) -> str:
    """Why the file should be left alone; empty if it can be restored."""
    if change.after is None:
        return "the run ended during the change, so its content may not be from this session"
    if not now.is_(change.after):
        gone = not now.state.is_there
        return "it was deleted since" if gone else "it was changed since, but not by this session"
    return "it was also changed by something else during the turn" if change.meddled else ""


def _save(now: Seen, store: Store, turn: str) -> str | None:
    if now.state.digest is None:
        return None
    if now.data is None:
        raise Refused("its current content is too large to save")
    try:
        store.put(now.state.digest, now.data, turn)
    except Full as error:
        raise Refused(f"cannot save its current content: {error}") from None
    return now.state.digest


def _put_back(location: Location, change: Change, store: Store) -> None:
    if change.before == MISSING:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(location.name, dir_fd=location.dir_fd)
        return
    data = store.get(change.before.digest or "")
    if data is None:
        raise Refused("the copy is gone or damaged")
    write_whole(location, data, change.before.mode)


def _remove_folders(folders: Sequence[str]) -> None:
    """Remove folders that were created for files, if they are empty."""
    for folder in folders:
        with contextlib.suppress(OSError, PathError, Moved), exactly(folder) as location:
            os.rmdir(location.name, dir_fd=location.dir_fd)


def _note_for_model(undone: Sequence[Mapping[str, Any]], base: str) -> str:
    """The note for the model on files restored since its last turn."""
    restored: dict[str, str] = {}
    for record in undone:
        restored |= dict.fromkeys(record["restored"], "as it was before")
        restored |= dict.fromkeys(record["removed"], "removed")
    lines = [
        f"- {printable_in_tags(os.path.relpath(path, base))}: {what}"
        for path, what in restored.items()
    ]
    more = len(lines) - _SHOWN_FILES
    lines[_SHOWN_FILES:] = [f"- and {more} more"] if more > 0 else []
    head = "The user has undone changes you made to files. Read them again before you continue:"
    return "\n".join(
        [f'<system-reminder source="{MODULE_ID}">', head, *lines, "</system-reminder>"]
    )


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
            shutil.rmtree(self._own, ignore_errors=True)

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
                        "copy": self._store.find_copy(change.before.digest),
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
        redacted = session_redactor(self._coordinator).text(prompt)
        return cut_text(" ".join(redacted.split()), _SHORT_PROMPT)

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
            context_injection=_note_for_model(unreported, self._base()),
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
                    paths = dict.fromkeys(p for item in inputs for p in _paths_under(item, keys))
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
        result = values.get("tool_result", values.get("result"))
        succeeded = ran and bool(read_field(result, "success", True))
        async with self._busy:
            try:
                changed = await self._keeper.finish(call, succeeded=succeeded)
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
        paths: dict[str, None] = {}
        for item in inputs:
            values = to_mapping(item)
            command = values.get(self._config.commands[tool])
            folder = values.get("working_directory") or values.get("cwd") or "."
            if isinstance(command, str) and isinstance(folder, str):
                paths |= dict.fromkeys(named_paths(command, os.path.join(base, folder)))
        return list(paths)

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
                remove_older(folder, self._config.max_age_days)
                self._own = folder / os.urandom(8).hex()
            else:
                self._own = Path(tempfile.mkdtemp(prefix="amplifier-backups-"))
        return self._own
