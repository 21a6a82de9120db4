"""The folder commands run in: the one the model chooses, else where the last command went."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
from pathlib import Path
from typing import Any

from amplifier_modules._shared.files.roots import Location, PathError, PathGuard
from amplifier_modules._shared.process.output_dir import output_dir
from amplifier_modules.tool_bash.config import BashConfig

_LONGEST_NOTE = 4096
"""Bytes of the longest path the system takes."""


class WorkingFolder:
    """Where commands begin.

    Args:
        coordinator: The session's.
        config: The module's settings.
    """

    def __init__(self, coordinator: Any, config: BashConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._kept: str | None = None

    def locate(self, chosen: str) -> Location:
        """The folder for a command.

        Args:
            chosen: What the model asks for, relative to where the last command went.

        Raises:
            PathError: It may not be used.
            OSError: A folder on the way to it is not there.
        """
        if self._kept is not None and not os.path.isdir(self._kept):
            self._kept = None
        return self._guarded(self._kept or self._home, chosen)

    def trace(self) -> Trace | None:
        """What finds out where a command goes; None if that is not to be, or cannot be, known."""
        if not self._config.keep_folder:
            return None
        try:
            return Trace(output_dir(self._coordinator) / f".folder-{secrets.token_hex(6)}")
        except OSError:
            # Nowhere to write to. The command matters more than where it ends up.
            return None

    def follow(self, began: str, ended: str | None) -> list[str]:
        """Begin where a command has ended, if it went elsewhere; what the model is to know.

        Args:
            began: The folder it began in, without links.
            ended: The folder it ended in; None if that is not known.
        """
        if ended is None or ended == began:
            return []
        try:
            with self._guarded(ended, ".") as location:
                os.close(location.open(os.O_RDONLY | os.O_DIRECTORY))
        except (PathError, OSError):
            return [f"the next command begins in {self._kept or self._home} again, not in {ended}"]
        self._kept = ended
        return [f"the next command begins in {ended}"]

    @property
    def next(self) -> str:
        """Where the next command begins if nothing else is chosen."""
        return self._kept or self._home

    @property
    def _home(self) -> str:
        return self._coordinator.get_capability("session.working_dir") or os.getcwd()

    def _guarded(self, base: str, path: str) -> Location:
        home, allowed = self._home, self._config.allowed_paths
        roots = [home] if allowed is None else [os.path.expanduser(root) for root in allowed]
        roots = [os.path.join(home, root) for root in roots]
        if path == "." and os.path.realpath(base) == os.path.realpath(home):
            roots.append(home)
        return PathGuard(roots, base=base, writing=False, setting="allowed_paths").locate(path)


class Trace:
    """The file in which a shell notes the folder it ends in."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, command: str) -> str:
        """`command`, which will leave the note.

        The trap stands on its first line, so that errors name the lines the model wrote.
        """
        note = f"pwd -P >{shlex.quote(str(self._file))} 2>/dev/null"
        return f"trap {shlex.quote(note)} EXIT; {command}"

    def read(self) -> str | None:
        """The folder; None if the shell was killed, replaced, or has left something else there."""
        # What the command ran as may write there too: a pipe or a device must not hold the session
        # up, and what is no path must not become one.
        try:
            note = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            noted = b""
        else:
            is_file = stat.S_ISREG(os.fstat(note).st_mode)
            noted = os.read(note, _LONGEST_NOTE + 1) if is_file else b""
            os.close(note)
        with contextlib.suppress(OSError):
            self._file.unlink()
        path = os.fsdecode(noted.removesuffix(b"\n"))
        is_path = len(noted) <= _LONGEST_NOTE and os.path.isabs(path) and "\0" not in path
        return path if is_path else None
