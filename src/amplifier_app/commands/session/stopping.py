"""`amplifier session stop`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from amplifier_app.base.errors import SessionError
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.runtime.turn_outcome import resume_command
from amplifier_app.sessions.background import is_running, wait_for_end
from amplifier_app.sessions.store import SessionStore

_LOOK_SECONDS = 0.1
_STOP_SECONDS = 30.0
_RESULT_SECONDS = 5.0


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
    wait_for_end(folder, _RESULT_SECONDS)
    if not folder.exists():
        # A session without a message is not kept.
        to_stderr("amplifier: stopped before it had begun")
        return
    to_stderr(f"amplifier: stopped; resume it with: {resume_command(folder.name)}")
