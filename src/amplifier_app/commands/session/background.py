"""`amplifier session join|stop`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from amplifier_app.base.errors import SessionError
from amplifier_app.base.sanitize import for_pipe
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.render.conversation import part_lines
from amplifier_app.runtime.export.parts import Part, build_parts
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.sessions.background import (
    RESULT,
    SOCKET,
    is_running,
    read_result,
    restore_outcome,
)
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id

_LOOK_SECONDS = 0.3
_STOP_SECONDS = 30.0
_RESULT_SECONDS = 5.0
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
    if _can_type() and (view.folder / SOCKET).exists():
        from amplifier_app.commands.session.typing_in import watch_and_type

        run_loop(watch_and_type(view.folder, view.show))
    while view.show():
        time.sleep(_LOOK_SECONDS)
    _wait_for_result(view.folder)
    invocation: Invocation = context.obj
    invocation.outcome = restore_outcome(read_result(view.folder) or {})


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

    def show(self) -> bool:
        """Show what is new; return whether the session still runs."""
        runs = is_running(self.folder)
        parts = list(_complete_parts(self._session, runs))
        lines = part_lines(parts[self._shown :], self._width or _PIPE_WIDTH)
        if lines:
            text = "\n".join(["", *lines] if self._shown else lines)
            print(for_pipe(text) if self._width is None else text, flush=True)
        self._shown = len(parts)
        return runs


def _complete_parts(found: SessionFolder, runs: bool) -> Iterator[Part]:
    """The parts of the conversation; of a running one without its last item, which may still grow."""
    items = list(found.conversation())
    return build_parts(items[:-1] if runs else items, Visibility("user"))


def _wait_for_result(folder: Path) -> None:
    """Wait until a detached run, which closes its session first, has written its result; a killed one never does."""
    end = time.monotonic() + _RESULT_SECONDS
    while (folder / RESULT).exists() and read_result(folder) is None and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS / 10)


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
