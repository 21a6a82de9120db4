"""`amplifier run --detach`: the run goes on in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.locks import hold_lock
from amplifier_app.base.outcome import OK, Outcome
from amplifier_app.base.stdio import stdin_is_tty, to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.request import Request
from amplifier_app.sessions.background import (
    LOG,
    SOCKET,
    is_running,
    restore_outcome,
)
from amplifier_app.sessions.lock import is_locked, take_lock
from amplifier_app.sessions.removal import AlreadyExists
from amplifier_app.sessions.store import SessionStore, new_session_id
from amplifier_app.sessions.summary import RESULT_FILE, short_id
from amplifier_app.sessions.transcript import transcript_size
from amplifier_support.environment import inherited_environment
from amplifier_support.files import make_private_folder, open_private_in, system_errors_as
from amplifier_support.journal import parse

_PROGRAM = "import sys; from amplifier_app.cli import main; sys.exit(main())"
_START_SECONDS, _LOOK_SECONDS = 60.0, 0.02
_START_LOCK = ".detached.lock"

MAX_DETACHED = 8
"""Runs of a user in the background at a time."""


def detach(request: Request, invocation: Invocation, words: list[str]) -> Outcome:
    """Start the run, print the id of its session, and return once it has begun.

    Args:
        request: The request.
        invocation: The invocation.
        words: The command line after `amplifier run`.

    Raises:
        UsageError: An option needs this process.
        SessionError: The session exists, is unknown or in use, or cannot be written.
    """
    for option, is_given in (
        ("--continue", request.continue_last),
        ("--fork", request.fork is not None),
        ("--no-save", request.no_save),
    ):
        if is_given:
            raise UsageError(f"--detach and {option} are mutually exclusive")
    if request.prompt is None and request.resume is None and stdin_is_tty():
        raise UsageError("--detach needs a prompt", hint='Give one: amplifier run --detach "…"')
    store, is_new = SessionStore(), request.resume is None
    if request.resume is None:
        folder = store.root / (request.session or new_session_id())
        if folder.exists():
            raise AlreadyExists(folder.name)
    else:
        folder = store.find(request.resume).path
        if is_running(folder):
            raise SessionError(f"session {folder.name} is in use", hint="Wait until it has ended.")
    options = ["--session", folder.name] if is_new and request.session is None else []
    if invocation.output == "text":
        options += ["--output", "json"]
    words = ["run", *options, *(word for word in words if word != "--detach")]
    outcome = _begin(words, folder, is_new=is_new)
    if outcome is OK:
        if request.approve is None and request.approve_with is None and not request.quiet:
            to_stderr(
                "  Calls that need approval are denied while no terminal has joined; "
                "--approve park keeps them."
            )
        print(folder.name)
        # The result follows in the background, in the format of `--output`.
        invocation.output = "text"
    return outcome


def go_on(request: Request, prompt: str) -> Outcome:
    """Let a saved session go on with a prompt in the background.

    Args:
        request: Resumes the session.
        prompt: The prompt.

    Raises:
        SessionError: The session is unknown or cannot be written.
    """
    assert request.resume is not None
    folder = SessionStore().find(request.resume).path
    words = ["run", "--output=json", *request.as_words(), "--", prompt]
    outcome = _begin(words, folder, is_new=False)
    if outcome is OK:
        return OK
    return outcome._replace(hint=f"Go on with: amplifier run --resume {short_id(folder.name)}")


def find_obstacle() -> str | None:
    """Why no further run can go to the background; None if one can."""
    # Each holds a lock on the file of its result.
    running = sum(map(is_locked, SessionStore().root.glob(f"*/{RESULT_FILE}")))
    if running < MAX_DETACHED:
        return None
    return f"{running} runs are in the background already, the most at a time"


def _begin(words: list[str], folder: Path, *, is_new: bool) -> Outcome:
    """Start a process with a command line, and return once it has opened the session.

    Raises:
        SessionError: Too many runs are in the background, or the session cannot be written.
    """
    # One at a time, so that two commands do not take the last place both.
    with hold_lock(paths.state_dir() / _START_LOCK, None):
        if (obstacle := find_obstacle()) is not None:
            hint = "List them: amplifier session list\nStop one: amplifier session stop ID"
            raise SessionError(obstacle, hint=hint)
        return _start_and_wait(words, folder, is_new=is_new)


def _start_and_wait(words: list[str], folder: Path, *, is_new: bool) -> Outcome:
    with _files(folder) as (log, stdout):
        process = _start(words, log, stdout)
        end = time.monotonic() + _START_SECONDS
        before = transcript_size(folder)
        # The session has begun once it can be joined, or has a message where there are no sockets.
        while process.poll() is None and time.monotonic() < end:
            if (folder / SOCKET).exists() or transcript_size(folder) != before:
                break
            time.sleep(_LOOK_SECONDS)
        result = parse(_read(stdout)) or {}
        has_session = (folder / "metadata.json").exists() if is_new else result.get("session_id")
        if process.returncode and not has_session:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            return _failed(result, _read(log).decode("utf-8", "replace"), process.returncode)
    to_stderr(
        f"amplifier: running in the background: amplifier session join {short_id(folder.name)}"
    )
    return OK


@contextlib.contextmanager
def _files(folder: Path) -> Generator[tuple[int, int]]:
    """The log and the result of a run, which can be read when a run without a message has removed its folder.

    Raises:
        SessionError: They cannot be written.
    """
    make_private_folder(folder)
    with contextlib.ExitStack() as stack:
        with system_errors_as(SessionError, f"cannot write {folder}"):
            log = open_private_in(folder, LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            stack.callback(os.close, log)
            # Of a run before.
            for name in (SOCKET, RESULT_FILE):
                (folder / name).unlink(missing_ok=True)
            result = open_private_in(folder, RESULT_FILE, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, result)
            take_lock(result)  # The run inherits the lock, and holds it until its process ends.
        yield log, result


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _start(words: list[str], log: int, result: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # Without the working directory on its path: nothing of an untrusted project is imported.
        [sys.executable, "-P", "-c", _PROGRAM, *words],
        stdin=subprocess.DEVNULL if stdin_is_tty() else None,
        stdout=result,
        stderr=log,
        env=inherited_environment(),
        start_new_session=True,
    )


def _failed(result: Mapping[str, Any], log: str, code: int) -> Outcome:
    """The outcome of a run that failed before it had a session; what it wrote is shown."""
    error = result.get("error") or {"message": f"it ended with code {code}"}
    failure = restore_outcome({**result, "error": error})
    # Its last lines are the error, which is reported here.
    if before := log.partition(f"amplifier: {failure.message}")[0].strip():
        to_stderr(before)
    return failure._replace(message=f"the run did not start: {failure.message}")
