"""Commands on files: the changes of the session, the instruction files of a project, and a review by the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.chat.slash.layout import Lines, Rows, lines
from amplifier_app.chat.slash.registry import (
    Chat,
    Reply,
    ask_module,
    command,
    describe_error,
    parse_choice,
)
from amplifier_app.render.diff import compare, files_lines, summary
from amplifier_app.runtime import describe
from amplifier_app.trust import INSTRUCTION_NAMES, instruction_files
from amplifier_support.clock import utc_time
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import TRUSTED_DIR, UNDO, UNDO_LIST, Capability

# -- /undo: revert the file changes of the last prompt, using the copies a module keeps --


_Function = TypeVar("_Function")

_MAX_SHOWN = 50


@command(
    "/undo",
    "Revert file changes of the last prompt",
    usage="[list|force]",
    complete=lambda chat, argument: (
        ("list", "prompts that can be undone"),
        ("force", "also overwrite files changed since"),
    ),
)
async def undo(chat: Chat, argument: str) -> Reply:
    argument = parse_choice("/undo", argument, ("", "list", "force"))
    capability = UNDO_LIST if argument == "list" else UNDO
    function = _of_copies(chat, capability, "undo")
    try:
        answer = await ask_module(function, **({"force": True} if argument == "force" else {}))
    # A module may raise anything; the chat continues.
    except Exception as error:
        return f"Nothing was undone: {describe_error(error)}"
    if argument == "list":
        return _list(answer)
    return _describe(answer) if answer else "No file changes to undo."


def _of_copies(chat: Chat, capability: Capability[_Function], doing: str) -> _Function:
    """Return a capability of the module that keeps copies of changed files.

    Raises:
        AppError: There is none.
    """
    function = capability.of(chat.session.session.coordinator)
    if function is None:
        raise AppError(
            f"cannot {doing}: no module in this session keeps copies of changed files",
            hint="Add hooks-backup to the plan: amplifier module add hooks-backup",
        )
    return function


def _describe(done: Mapping[str, Any]) -> str:
    refused = done.get("refused") or []
    rows = [(how, _path(path)) for how in ("restored", "removed") for path in done.get(how) or []]
    rows += [
        ("skipped", f"{_path(item['path'])}: {one_line(str(item['reason']), 200)}")
        for item in refused
    ]
    head = "Undone" if len(rows) > len(refused) else "Nothing was undone"
    lines = [f"{head}: {_turn(done)}", *_rows(rows)]
    if refused:
        lines.append("Use /undo force to restore the skipped files as well, where a copy exists.")
    left = done.get("left")
    if left:
        lines.append(f"{describe.count(left, 'earlier prompt')} can be undone.")
    return "\n".join(lines)


def _list(turns: Any) -> str:
    lines: list[str] = []
    for turn in turns or []:
        undone = ", undone" if turn.get("undone") else ""
        lines.append(f"{_turn(turn)}{undone}")
        files = turn.get("files") or []
        lines += _rows([(str(file["change"]), _path(file["path"])) for file in files])
    return "\n".join(lines) or "No prompt has changed files."


def _turn(turn: Mapping[str, Any]) -> str:
    time: Any = turn.get("time")
    prompt = one_line(str(turn.get("prompt") or ""), 80) or "a prompt"
    when = ""
    if isinstance(time, int | float) and time:
        when = f" ({utc_time(time).astimezone():%Y-%m-%d %H:%M})"
    return f"{prompt}{when}"


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    lines = [f"  {what:<9} {text}" for what, text in rows[:_MAX_SHOWN]]
    more = len(rows) - _MAX_SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _path(path: Any) -> str:
    return one_line(_relative(str(path)), 200)


# -- /diff: the file changes of the last prompt or of the session ------------------------


_LARGEST = 1_000_000
"""Bytes of the largest file that is compared."""


@command(
    "/diff",
    "File changes of the last prompt, or of the session",
    usage="[session]",
    during_turn=True,
    complete=lambda chat, argument: (("session", "all prompts of this session"),),
)
async def diff(chat: Chat, argument: str) -> Reply:
    whole = parse_choice("/diff", argument, ("", "session")) == "session"
    listing = _of_copies(chat, UNDO_LIST, "compare")
    try:
        turns = [turn for turn in listing() if not turn.get("undone")]
    # A module may raise anything; the chat continues.
    except Exception as error:
        raise AppError(f"cannot compare: {describe_error(error)}") from error
    files, skipped = [], []
    for path, copy in _first_copies(turns if whole else turns[:1]):
        name = _relative(path)
        old, new = _text(copy), _text(path)
        if old is None or new is None:
            skipped.append(f"{name}: not a text file, too large, or without a copy")
        elif old != new:
            files.append(compare(old, new, name))
    if not files and not skipped:
        return "No file changes."
    diffs = Lines(lambda width: files_lines(files, width))
    return lines(diffs, *skipped, *([summary(files)] if len(files) > 1 else []))


def _first_copies(turns: list[dict[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """Yield each changed file with the copy from before its first change; empty if it was new."""
    copies: dict[str, str | None] = {}
    for turn in turns:  # latest first
        for file in turn.get("files") or []:
            copies[str(file["path"])] = "" if file["change"] == "created" else file.get("copy")
    yield from sorted(copies.items())


def _text(path: str | None) -> str | None:
    """Return the text of a file, empty if there is none; None if it cannot be compared."""
    if path is None:
        return None
    try:
        if not path or not os.path.lexists(path):
            return ""
        if os.path.getsize(path) > _LARGEST:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _relative(path: str) -> str:
    """Return a path relative to the working directory if it is inside it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


# -- /init, /memory and /review: instruction files, and a review by the model


_MODULE = "hooks-context-files"

_WRITE = """\
Write the file AGENTS.md for this repository: the instructions that a programmer who has never seen it needs \
before a first change.

First read what is there: README and CONTRIBUTING files, build files, CI configuration, and a few source and test \
files of each main part. Run nothing that changes files. Then write at most 60 lines:

- the commands to build, run all tests, run one test, check style and format, with their exact words;
- the main folders and what belongs where, only what their names do not say;
- the conventions that the code follows and a newcomer would miss, with a file as an example of each;
- what to avoid, and what needs care.

State only what you have seen in the files. Leave out what holds for any project."""

_IMPROVE = """\
The repository has an AGENTS.md. Read it, compare each statement with the files, and correct what is wrong or \
missing by the rules below; keep what is right word for word.

"""

_REVIEW = """\
Review {what}. Read the changes, and as much of the code around them as you need to judge them. Change nothing.

Report problems that matter, the most serious first: each as path:line, what goes wrong and for which input or \
state, and how to fix it. Verify each by reading the code it depends on, and leave out what you cannot confirm. \
Look for wrong results, lost data, security holes, missing error handling, races and missing tests, before style. \
If there is nothing to report, say so in one sentence."""


@command("/init", "Let the model write the AGENTS.md of this project")
async def init(chat: Chat, argument: str) -> Reply:
    chat.send((_IMPROVE if os.path.exists("AGENTS.md") else "") + _WRITE, adds_files=False)
    return None


@command("/review", "Let the model review changes", usage="[COMMIT|RANGE|PATH]")
async def review(chat: Chat, argument: str) -> Reply:
    if argument:
        what = f"`{argument}`: a commit, a range of commits, a branch or a path of this repository"
    else:
        what = "the uncommitted changes of this repository (git diff HEAD, and files not yet added)"
    chat.send(_REVIEW.format(what=what), adds_files=False)
    return None


class _File(NamedTuple):
    """An instruction file.

    Attributes:
        path: The file.
        origin: `user` or `project`.
        state: Whether it is in force, and why not.
    """

    path: Path
    origin: str
    state: str


@command("/memory", "List the instruction files in force, or edit one", usage="[NUMBER]")
async def memory(chat: Chat, argument: str) -> Reply:
    files = _instruction_files(chat)
    if argument:
        return _edit(chat, files, argument)
    listed = [
        (f"{number} {visible(paths.short_path(str(file.path)))}", f"{file.origin}: {file.state}")
        for number, file in enumerate(files, 1)
    ]
    return lines(
        Rows(listed), "/memory NUMBER edits one; /init lets the model write the project's."
    )


def _instruction_files(chat: Chat) -> list[_File]:
    coordinator = chat.session.session.coordinator
    hooks = (coordinator.config or {}).get("hooks") or ()
    is_mounted = any(entry.get("module") == _MODULE for entry in hooks)
    off = None if is_mounted else f"not read: the plan has no {_MODULE}"
    trusted = TRUSTED_DIR.of(coordinator)
    config = paths.config_dir()
    places = [config / name for name in INSTRUCTION_NAMES]
    own = next((place for place in places if place.exists()), places[0])
    files = [_File(own, "user", _state(own, off))]
    sources = instruction_files(chat.session.facts.working_dir)
    for path in sources or [Path(chat.session.facts.working_dir, INSTRUCTION_NAMES[0])]:
        inside = trusted is not None and Path(os.path.realpath(path)).is_relative_to(trusted)
        untrusted = None if inside or not path.exists() else "not read: see 'amplifier trust'"
        files.append(_File(path, "project", _state(path, off or untrusted)))
    return files


def _state(path: Path, why_not: str | None) -> str:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "not there yet"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return why_not or f"in force, {describe.size(size)}"


def _edit(chat: Chat, files: list[_File], argument: str) -> Reply:
    if not argument.isdecimal() or not 1 <= int(argument) <= len(files):
        raise UsageError(f"/memory expects a number from 1 to {len(files)}, got {argument!r}")
    path = files[int(argument) - 1].path
    label = visible(paths.short_path(str(path)))
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = chat.edit_text(before)
        if after.rstrip("\n") == before.rstrip("\n"):
            return f"{label} is unchanged"
        write_whole(path, after.rstrip("\n") + "\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise AppError(f"cannot edit {label}: {why}") from error
    return f"{label} is saved; it counts from the next prompt"
