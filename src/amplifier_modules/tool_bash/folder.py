"""The folder commands start in: the one the model chooses, otherwise where the last one ended."""

from __future__ import annotations

import os
import shlex
import tempfile
from typing import Any

from amplifier_modules._shared.files.roots import Location, PathError, PathGuard
from amplifier_modules.tool_bash.config import BashConfig
from amplifier_support.process import INHERITED
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import WORKING_DIR

_LONGEST_NOTE = 4096
"""Bytes of the longest path the system accepts."""


class WorkingFolder:
    """Track the folder commands start in.

    Args:
        coordinator: The session's.
        config: The module's settings.
        sandbox: Restricts the commands.
    """

    def __init__(self, coordinator: Any, config: BashConfig, sandbox: Sandbox | None) -> None:
        self._coordinator = coordinator
        self._config = config
        self._sandbox = sandbox
        self._kept: str | None = None

    def locate(self, chosen: str) -> Location:
        """Return the folder for a command.

        Args:
            chosen: The model's choice, relative to where the last command ended.

        Raises:
            PathError: The folder is not allowed.
            OSError: A folder in the path is missing.
        """
        if self._kept is not None and not os.path.isdir(self._kept):
            self._kept = None
        return self._guarded(self._kept or self._home, chosen)

    def trace(self, shell: str) -> Trace | None:
        """Return a trace of where a command of this shell ends; None if not wanted or possible."""
        if not self._config.keep_folder:
            return None
        try:
            place = None if self._sandbox is None else self._sandbox.temporary_folder
            return Trace(shell, place)
        except OSError:
            # Nowhere to write the trace. Running the command matters more.
            return None

    def follow(self, began: str, ended: str | None) -> list[str]:
        """Start the next command where this one ended; return notes for the model.

        Args:
            began: The folder it started in, links resolved.
            ended: The folder it ended in; None if unknown.
        """
        if ended is None or ended == began:
            return []
        try:
            with self._guarded(ended, ".") as location:
                os.close(location.open(os.O_RDONLY | os.O_DIRECTORY))
        except (PathError, OSError):
            return [f"the next command starts in {self._kept or self._home} again, not in {ended}"]
        self._kept = ended
        return [f"the next command starts in {ended}"]

    @property
    def next(self) -> str:
        """Where the next command starts if the model chooses nothing else."""
        return self._kept or self._home

    @property
    def _home(self) -> str:
        return WORKING_DIR.of(self._coordinator) or os.getcwd()

    def _guarded(self, base: str, path: str) -> Location:
        home, allowed = self._home, self._config.allowed_paths
        roots = [home] if allowed is None else [os.path.expanduser(root) for root in allowed]
        roots = [os.path.join(home, root) for root in roots]
        if path == "." and os.path.realpath(base) == os.path.realpath(home):
            roots.append(home)
        return PathGuard(roots, base=base, writing=False, setting="allowed_paths").locate(path)


class Trace:
    """The file in which a shell records the folder it ends in.

    It has no name, so that nothing is left of it however the session ends.

    Args:
        shell: The shell's program.
        place: A folder for temporary files that the shell may use; None for the usual one.

    Raises:
        OSError: There is no place for temporary files.

    Attributes:
        descriptor: The file, to be inherited by the shell as number INHERITED.
    """

    def __init__(self, shell: str, place: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(buffering=0, dir=place)  # noqa: SIM115 - `read` closes it
        self.descriptor = self._file.fileno()
        # dash takes only one digit in `>&9`, and scripts use those numbers themselves.
        is_dash = os.path.basename(os.path.realpath(shell)) == "dash"
        self._target = f"/dev/fd/{INHERITED}" if is_dash else f"&{INHERITED}"

    def of(self, command: str) -> str:
        """`command`, extended to record where it ends.

        The trap is on its first line, so that errors name the lines the model wrote.
        """
        note = f"{{ pwd -P >{self._target}; }} 2>/dev/null"
        return f"trap {shlex.quote(note)} EXIT; {command}"

    def read(self) -> str | None:
        """The folder; None if the shell was killed or replaced, or wrote something else there."""
        with self._file:
            noted = os.pread(self.descriptor, _LONGEST_NOTE + 1, 0)
        path = os.fsdecode(noted.removesuffix(b"\n"))
        is_path = len(noted) <= _LONGEST_NOTE and os.path.isabs(path) and "\0" not in path
        return path if is_path else None
