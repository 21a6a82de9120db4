"""`amplifier session join|stop`."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path

import typer

from amplifier_app.base.errors import SessionError
from amplifier_app.base.sanitize import for_pipe
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.render.conversation import part_lines
from amplifier_app.runtime.export.parts import build_parts
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.sessions.background import SOCKET, is_running, read_result, restore_outcome
from amplifier_app.sessions.conversation import Step
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.lock import is_locked
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import RESULT_FILE, short_id

_LOOK_SECONDS = 0.3
_STOP_SECONDS = 30.0
_RESULT_SECONDS = 5.0
_LOST_SECONDS = 0.5
"""Seconds until a killed process has surely released its locks."""
_PIPE_WIDTH = 100


def join(context: typer.Context, session_id: SessionArgument) -> None:
    """Show a session that runs in another process, as it goes on, until it ends.

    \b
      id=$(amplifier run --detach "Fix the tests.")
      amplifier session join $id

    Several can watch a detached run. The first on a terminal also types: a line is a message for the next
    step, and what needs approval is asked there. Ctrl-C or Ctrl-D leaves; the run goes on. Exits with the
    exit code of the run.
    """
    view = _View(SessionStore().find(session_id))
    is_complete: bool | None = None
    while is_complete is None:
        # A run that has a socket shows all that follows itself.
        size = view.size
        is_complete = _watch(view)
        if is_complete is None:
            if not view.show(size):
                view.show()
                break
            time.sleep(_LOOK_SECONDS)
    _wait_for_result(view.folder, _LOST_SECONDS if is_complete is False else _RESULT_SECONDS)
    runs = is_running(view.folder)
    result = read_result(view.folder)
    if runs or (result is not None and is_complete is False):
        raise SessionError(
            f"the connection to session {view.folder.name} was lost",
            hint=f"See the rest: amplifier session {'join' if runs else 'show'} {short_id(view.folder.name)}",
        )
    if result is None and (view.folder / RESULT_FILE).exists():
        raise SessionError(
            f"the run of session {view.folder.name} was killed",
            hint=f"Resume it with: amplifier run --resume {short_id(view.folder.name)}",
        )
    invocation: Invocation = context.obj
    invocation.outcome = restore_outcome(result or {})


def _watch(view: _View) -> bool | None:
    """Show a detached run until it ends, see `watch`; None if it is not one, or has not begun."""
    if not (view.folder / SOCKET).exists():
        return None
    from amplifier_app.commands.session.watching import watch

    return run_loop(watch(view.folder, view.show_to, types=_can_type()))


def _can_type() -> bool:
    """Return True if this process has the keyboard of a terminal and can write to it."""
    try:
        return os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp()
    except (OSError, AttributeError):  # a terminal that is gone; a system without process groups
        return False


class _View:
    """The conversation of a session as far as it was shown."""

    def __init__(self, session: SessionFolder) -> None:
        self.folder = session.path
        self._session = session
        self._width = terminal_width(1)
        self._shown = 0

    @property
    def size(self) -> int:
        """The size of its transcript in bytes."""
        try:
            return (self.folder / "transcript.jsonl").stat().st_size
        except FileNotFoundError:
            return 0

    def show(self, size: int | None = None) -> bool:
        """Show what is new, in the first bytes of the transcript or in all; return whether the session still runs."""
        runs = is_running(self.folder)
        items = list(self._session.conversation(size))
        last = items[-1] if runs and items else None
        if isinstance(last, Step):
            # Calls that have ended, in order: their lines have the results.
            ended = itertools.takewhile(lambda call: call.result is not None, last.calls)
            items[-1] = last._replace(calls=tuple(ended))
        parts = list(build_parts(items, Visibility("user")))
        lines = part_lines(parts[self._shown :], self._width or _PIPE_WIDTH)
        if lines:
            text = "\n".join(["", *lines] if self._shown else lines)
            print(for_pipe(text) if self._width is None else text, flush=True)
        self._shown = max(self._shown, len(parts))
        return runs

    def show_to(self, size: int) -> None:
        """Show what is new in the first bytes of the transcript, and a line between that and what follows."""
        self.show(size)
        if self._shown:
            print(flush=True)


def _wait_for_result(folder: Path, seconds: float = _RESULT_SECONDS) -> None:
    """Wait until a detached run has closed its session and written its result, or its process is gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (is_running(folder) or _is_result_due(folder / RESULT_FILE)):
        time.sleep(_LOOK_SECONDS / 10)


def _is_result_due(file: Path) -> bool:
    # The process that writes it holds a lock on the file.
    return file.exists() and read_result(file.parent) is None and is_locked(file)


def stop(session_id: SessionArgument) -> None:
    """Stop a session that runs in another process, as Ctrl-C would. It can be resumed."""
    folder = SessionStore().find(session_id).path
    if not is_running(folder):
        raise SessionError(f"session {folder.name} is not running")
    try:
        process = int(json.loads((folder / "lock").read_bytes())["pid"])
        os.kill(process, signal.SIGINT)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionError(f"cannot stop session {folder.name}: {error}") from error
    end = time.monotonic() + _STOP_SECONDS
    while is_running(folder):
        if time.monotonic() > end:
            raise SessionError(
                f"session {folder.name} is still running, in process {process}",
                hint="It stops after the tool that runs now.",
            )
        time.sleep(_LOOK_SECONDS)
    _wait_for_result(folder)
    if not folder.exists():
        # A session without a message is not kept.
        to_stderr("amplifier: stopped before it had begun")
        return
    to_stderr(f"amplifier: stopped; resume it with: amplifier run --resume {short_id(folder.name)}")
