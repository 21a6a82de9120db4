"""The state of a git repository, without running anything that its configuration names.

A repository's own configuration can name programs (fsmonitor, hooks, filters) that an ordinary
`git status` runs. Here these are switched off, so that looking is safe in any folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from typing import NamedTuple

_OPTIONS = (
    *("--no-optional-locks", "--no-pager", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.untrackedCache=false", "-c", "core.quotePath=false"),
)
_MOST_BYTES = 4 * 1024 * 1024


class GitState(NamedTuple):
    """Where a repository stands.

    Attributes:
        branch: The branch; None when no branch is checked out.
        commit: The commit it is at; None before the first.
        upstream: What it follows, if anything.
        ahead: Commits it has and the upstream has not.
        behind: Commits the upstream has and it has not.
        changes: `XY path` as in `git status --short`, in git's order.
    """

    branch: str | None
    commit: str | None
    upstream: str | None
    ahead: int
    behind: int
    changes: list[str]


async def git_state(folder: str, seconds: float) -> GitState | None:
    """The state of the repository around `folder`.

    Returns:
        None where there is no repository, no git, or no answer within `seconds`.
    """
    git = shutil.which("git")
    if git is None or not os.path.isabs(git):
        return None
    try:
        async with asyncio.timeout(seconds):
            # Filters run when git compares contents; each that is configured is made a no-op.
            listed = await _run(git, folder, "config", "--null", "--name-only", "--list")
            if listed is None:
                return None
            drivers = set(re.findall(r"(?:^|\0)filter\.([^\0]+)\.(?:clean|smudge|process)", listed))
            off = [
                part
                for driver in sorted(drivers)
                for key, value in (("clean", ""), ("process", ""), ("required", "false"))
                for part in ("-c", f"filter.{driver}.{key}={value}")
            ]
            status = await _run(
                *(git, folder, *off, "status", "--porcelain=v2", "--branch", "-z"),
                *("--untracked-files=normal", "--ignore-submodules=all", "--no-renames"),
            )
    except TimeoutError:
        return None
    return None if status is None else read_status(status)


def read_status(text: str) -> GitState:
    """What `git status --porcelain=v2 --branch -z --no-renames` printed."""
    heads: dict[str, str] = {}
    changes: list[str] = []
    for record in text.split("\0"):
        kind, _, rest = record.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            heads[name] = value
        elif kind in ("1", "u"):
            fields = rest.split(" ", 7 if kind == "1" else 9)
            changes.append(f"{fields[0].replace('.', ' ')} {fields[-1]}")
        elif kind == "?":
            changes.append(f"?? {rest}")
    branch, commit = heads.get("branch.head"), heads.get("branch.oid")
    counts = re.fullmatch(r"\+(\d+) -(\d+)", heads.get("branch.ab", ""))
    return GitState(
        branch=None if branch == "(detached)" else branch,
        commit=None if commit == "(initial)" else commit,
        upstream=heads.get("branch.upstream"),
        ahead=int(counts[1]) if counts else 0,
        behind=int(counts[2]) if counts else 0,
        changes=changes,
    )


async def _run(git: str, folder: str, *arguments: str) -> str | None:
    """What git prints; None if it fails. Killed when the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *(git, *_OPTIONS, *arguments),
        cwd=folder,
        env=_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_MOST_BYTES,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        data = await process.stdout.read(_MOST_BYTES)
        if len(data) == _MOST_BYTES:
            return None
        while more := await process.stdout.read(_MOST_BYTES):
            data += more
            if len(data) >= _MOST_BYTES:
                return None
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return data.decode("utf-8", "replace") if code == 0 else None


def _environment() -> dict[str, str]:
    """The user's environment without what would point git elsewhere or make it ask."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # An object that is missing would be fetched, by a program that the repository names.
    no_fetch = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    return {**kept, **no_fetch, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
