"""Helpers that fetch run in a process group of their own, with a limit, and can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_POLL_SECONDS = 0.1


class Finished(NamedTuple):
    """How a helper ended: its exit code and what it wrote, as text."""

    code: int
    stdout: str
    stderr: str


class Stopped(Exception):
    """The helper was ended because nobody waits for it any more."""


class TimedOut(Exception):
    """The helper took longer than its limit."""


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float,
    stop: threading.Event | None = None,
) -> Finished:
    """Run a helper to its end; if it is ended early, so is everything it started.

    Args:
        argv: The command; never goes through a shell.
        cwd: The folder it runs in.
        env: Its whole environment.
        seconds: The longest it may take.
        stop: When set, the helper is ended.

    Raises:
        Stopped: `stop` was set.
        TimedOut: The limit was reached.
        OSError: It could not be started.
    """
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    limit = time.monotonic() + seconds
    try:
        while True:
            try:
                stdout, stderr = process.communicate(timeout=_POLL_SECONDS)
                return Finished(process.returncode, stdout, stderr)
            except subprocess.TimeoutExpired:
                if stop is not None and stop.is_set():
                    raise Stopped(argv[0]) from None
                if time.monotonic() > limit:
                    raise TimedOut(f"{argv[0]} took longer than {seconds:g} s") from None
    except BaseException:
        kill_group(process)
        raise


def kill_group(process: subprocess.Popen[str]) -> None:
    """End a process that was started in a session of its own, and everything it started."""
    if process.returncode is not None:
        # Its number may belong to somebody else by now.
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It ended by itself meanwhile; macOS says so with a permission error.
        process.kill()
    process.communicate()
