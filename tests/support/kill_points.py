"""Kill or interrupt a program at a chosen one of its own steps, so that it can be repeated exactly.

    steps = Steps(tmp_path / "steps")
    run_amplifier(..., conditions=Conditions(steps=str(steps.file)))               # counts
    start_amplifier(..., conditions=Conditions(steps=str(steps.file), kill_at=17)) # SIGKILL there
    steps.names()          # what the steps were, in order
    steps.acknowledged()   # for each journal, how many of its bytes were on disk for certain

A step is what can leave something behind on disk or start something: opening a file for writing,
writing a record, syncing (before and after), linking, renaming, removing, creating folders, sending a
command to its supervisor, starting a process. The process gets SIGKILL, or the signal `kill_by`, before
the step `kill_at` happens.
Steps of the main process only; it needs the warm interpreter (`tests.support.warm_interpreter`).

Standard library only: the warm interpreter imports it by itself.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_AUDITED = {
    *("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"),
    *("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.sendmsg"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Steps:
    """What a process that ran with `install` has noted.

    Args:
        file: Where it notes its steps; removed first if it exists.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        file.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """The steps, in order."""
        return [rest for kind, rest in self._lines() if kind == "step"]

    def acknowledged(self) -> dict[str, int]:
        """Journal -> bytes that a write to it has acknowledged."""
        found: dict[str, int] = {}
        for kind, rest in self._lines():
            if kind == "acknowledged":
                size, _, path = rest.partition(" ")
                found[path] = int(size)
        return found

    def _lines(self) -> list[tuple[str, str]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [(kind, rest) for kind, _, rest in (line.partition(" ") for line in lines)]


def install(file: str, kill_at: int | None, kill_by: int = signal.SIGKILL) -> None:
    """Note the steps of this process in `file`, and send it a signal at one of them."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    own, numbers = os.getpid(), itertools.count(1)

    def step(name: str) -> None:
        if os.getpid() != own:
            return
        number = next(numbers)
        os.write(log, f"step {name}\n".encode("utf-8", "backslashreplace"))
        if number == kill_at:
            os.kill(own, kill_by)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _AUDITED:
            step(f"{event} {arguments[0]!r}")
        elif event == "open" and _opens_for_writing(*arguments):
            step(f"open {arguments[0]!r}")

    _note_syncs(step)
    _note_acknowledged(log)
    sys.addaudithook(audit)


def _opens_for_writing(path: object, _: object, flags: object) -> bool:
    # A number is a descriptor that is open already.
    return not isinstance(path, int) and isinstance(flags, int) and bool(flags & _WRITING)


def _note_syncs(step: Callable[[str], None]) -> None:
    from amplifier_support import journal

    for name in ("pwrite", "fsync", "fdatasync"):
        setattr(os, name, _noted(name, getattr(os, name), step))
    setattr(journal, "_sync_data", os.fdatasync)  # noqa: B010 - it is bound at import


def _noted(name: str, call: Callable[..., Any], step: Callable[[str], None]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        step(name)
        result = call(*arguments)
        step(f"after {name}")
        return result

    return noted


def _note_acknowledged(log: int) -> None:
    from amplifier_support.journal import Writer

    write = Writer.write

    def noted(self: Writer, line: bytes, *, durable: bool = True) -> None:
        write(self, line, durable=durable)
        path = os.readlink(f"/proc/self/fd/{self.descriptor}")
        os.write(log, f"acknowledged {self.size} {path}\n".encode())

    Writer.write = noted
