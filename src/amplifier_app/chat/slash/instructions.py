"""`/init`, `/memory` and `/review`: the instruction files of a project, and a review by the model."""

from __future__ import annotations

import os
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.atomic_write import write_whole
from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.sanitize import visible
from amplifier_app.chat.slash.layout import Rows, lines
from amplifier_app.chat.slash.registry import Chat, Reply, command
from amplifier_app.runtime import describe
from amplifier_app.trust.instructions import NAMES, instruction_files
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import TRUSTED_DIR

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
    files = _files(chat)
    if argument:
        return _edit(chat, files, argument)
    listed = [
        (f"{number} {visible(paths.short_path(str(file.path)))}", f"{file.origin}: {file.state}")
        for number, file in enumerate(files, 1)
    ]
    return lines(
        Rows(listed), "/memory NUMBER edits one; /init lets the model write the project's."
    )


def _files(chat: Chat) -> list[_File]:
    coordinator = chat.session.session.coordinator
    hooks = (coordinator.config or {}).get("hooks") or ()
    is_mounted = any(entry.get("module") == _MODULE for entry in hooks)
    off = None if is_mounted else f"not read: the plan has no {_MODULE}"
    trusted = TRUSTED_DIR.of(coordinator)
    config = paths.config_dir()
    own = next((config / name for name in NAMES if (config / name).exists()), config / NAMES[0])
    files = [_File(own, "user", _state(own, off))]
    found = instruction_files(chat.session.facts.working_dir)
    for path in found or [Path(chat.session.facts.working_dir, NAMES[0])]:
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
    shown = visible(paths.short_path(str(path)))
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = chat.edit_text(before)
        if after.rstrip("\n") == before.rstrip("\n"):
            return f"{shown} is unchanged"
        write_whole(path, after.rstrip("\n") + "\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise AppError(f"cannot edit {shown}: {why}") from error
    return f"{shown} is saved; it counts from the next prompt"
