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
from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.base.stdio import stderr_is_tty, terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.render.conversation import part_lines
from amplifier_app.runtime.export.parts import Part, build_parts
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.runtime.turn_outcome import resume_command
from amplifier_app.sessions.background import SOCKET, is_running, read_result, restore_outcome
from amplifier_app.sessions.conversation import Step
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.lock import is_locked
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import RESULT_FILE, short_id
from amplifier_app.sessions.transcript import transcript_size

_LOOK_SECONDS = 0.1
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
    session = SessionStore().find(session_id)
    if stderr_is_tty() and isinstance(title := session.metadata.get("title"), str):
        to_stderr(f'amplifier: joined "{one_line(title, 60)}"')
    view = _View(session)
    while (outcome := _find_outcome(view.folder)) is None:
        # A run that has a socket shows all that follows itself.
        size = transcript_size(view.folder)
        if _watch(view) is False:
            outcome = _describe_loss(view.folder)
            break
        view.show(size)
        time.sleep(_LOOK_SECONDS)
    else:
        view.show()
    invocation: Invocation = context.obj
    invocation.outcome = outcome


def _watch(view: _View) -> bool | None:
    """Show a detached run until it ends, see `watch`; None if it is not one, or has not begun."""
    if not (view.folder / SOCKET).exists():
        return None
    from amplifier_app.commands.session.watching import watch

    return run_loop(watch(view.folder, view.begin, view.end, types=_can_type()))


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
        self._seen: tuple[bool, int] | None = None

    def show(self, size: int | None = None) -> None:
        """Show what is new, in the first bytes of the transcript or in all."""
        runs, size = is_running(self.folder), transcript_size(self.folder) if size is None else size
        if (runs, size) == self._seen:
            return
        self._seen = runs, size
        parts = self._parts(size, runs=runs)
        lines = part_lines(parts[self._shown :], self._width or _PIPE_WIDTH)
        if lines:
            text = "\n".join(["", *lines] if self._shown else lines)
            print(for_pipe(text) if self._width is None else text, flush=True)
        self._shown = max(self._shown, len(parts))

    def begin(self, size: int) -> None:
        """Show what is new in the first bytes of the transcript, and a line between that and what follows."""
        self.show(size)
        if self._shown:
            print(flush=True)

    def end(self, size: int) -> None:
        """Take the first bytes of the transcript as shown."""
        self._shown = len(self._parts(size, runs=False))

    def _parts(self, size: int, *, runs: bool) -> list[Part]:
        items = list(self._session.conversation(size))
        last = items[-1] if runs and items else None
        if isinstance(last, Step):
            # Calls that have ended, in order: their lines have the results.
            ended = itertools.takewhile(lambda call: call.result is not None, last.calls)
            items[-1] = last._replace(calls=tuple(ended))
        return list(build_parts(items, Visibility("user")))


def _find_outcome(folder: Path) -> Outcome | None:
    """The outcome of the last run of a session; None while one runs."""
    if _is_active(folder):
        return None
    if (result := read_result(folder)) is not None:
        return restore_outcome(result)
    if not (folder / RESULT_FILE).exists():
        return OK if folder.exists() else Outcome(Ending.SESSION, f"{folder} was removed")
    if _is_active(folder):  # another one, which has begun meanwhile
        return None
    hint = f"Resume it with: {resume_command(folder.name)}"
    return Outcome(Ending.SESSION, f"the run of session {folder.name} was killed", hint)


def _is_active(folder: Path) -> bool:
    """Return True if a session runs; in the background also before it opens and until its result is written."""
    # The process that writes the result holds a lock on its file.
    return is_running(folder) or (read_result(folder) is None and is_locked(folder / RESULT_FILE))


def _describe_loss(folder: Path) -> Outcome:
    """The outcome of a run whose connection was lost."""
    _wait_for_end(folder, _LOST_SECONDS)
    outcome = _find_outcome(folder)
    if outcome is not None and read_result(folder) is None:
        return outcome  # It was killed.
    command = "join" if outcome is None else "show"
    hint = f"See the rest: amplifier session {command} {short_id(folder.name)}"
    return Outcome(Ending.SESSION, f"the connection to session {folder.name} was lost", hint)


def _wait_for_end(folder: Path, seconds: float) -> None:
    """Wait until a session has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and _is_active(folder):
        time.sleep(_LOOK_SECONDS / 10)


def _find_process(folder: Path) -> int | None:
    """The id of the process that has a session open; None if none has.

    Raises:
        OSError, ValueError, TypeError, KeyError: It is not known.
    """
    if not is_running(folder):
        return None
    return int(json.loads((folder / "lock").read_bytes())["pid"])


def stop(session_id: SessionArgument) -> None:
    """Stop a session that runs in another process, as Ctrl-C would. It can be resumed."""
    folder = SessionStore().find(session_id).path
    try:
        if (process := _find_process(folder)) is None:
            raise SessionError(f"session {folder.name} is not running")
        os.kill(process, signal.SIGINT)
        end = time.monotonic() + _STOP_SECONDS
        # The next run of the session may begin at once.
        while _find_process(folder) == process:
            if time.monotonic() > end:
                raise SessionError(
                    f"session {folder.name} is still running, in process {process}",
                    hint="It stops after the tool that runs now.",
                )
            time.sleep(_LOOK_SECONDS)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SessionError(f"cannot stop session {folder.name}: {error}") from error
    _wait_for_end(folder, _RESULT_SECONDS)
    if not folder.exists():
        # A session without a message is not kept.
        to_stderr("amplifier: stopped before it had begun")
        return
    to_stderr(f"amplifier: stopped; resume it with: {resume_command(folder.name)}")
