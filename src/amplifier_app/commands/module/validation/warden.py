"""Runs one program with limits, and ends with it everything it started; never imported.

    python -I -S warden.py

reads one line of JSON from stdin, `{"argv", "cwd", "seconds", "bytes", "request"}`, and starts
`argv` with the descriptor of a socket as a last argument. The program reads `request` (one line)
from the socket and writes its answers (lines) there; its outputs go to a pipe of the warden. The
warden writes two lines to stdout: the pid of the program, then, when nothing of it is left,

    {"how": "ended" | "time" | "memory" | "answers", "code", "answers", "output", "left"}

If stdin ends before, whoever asked is gone: everything is killed and nothing written.

On Linux the warden is the subreaper of all that is started, so that what forks twice or makes a
session of its own is still found. Elsewhere what left both its parent and its group escapes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

OUTPUT_BYTES = 16 * 1024
"""How much of the end of the outputs is kept."""

ANSWER_BYTES = 8 * 1024 * 1024
"""How much the program may answer before it is stopped."""

START_SECONDS = 120.0
"""How long the program may take to its first answer."""

POLL_SECONDS = 0.1
LEAVING_SECONDS = 0.5
"""How long what is still there when the program ends may take to go by itself."""

KILL_SECONDS = 10.0
"""After this whatever does not die, such as a process of another user, is given up."""

_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """A living process below the warden. `resident` is in bytes."""

    pid: int
    group: int
    resident: int
    name: str


# -- what is running ---------------------------------------------------------------------


def descendants(root: int, group: int) -> list[Process]:
    """Living processes below `root`, and those of `group`."""
    table = dict(_from_proc() if os.path.isdir("/proc/self") else _from_ps())
    found: list[Process] = []
    for pid, (_, process) in table.items():
        ancestor = pid
        while ancestor in table and ancestor != root:
            ancestor = table[ancestor][0]
        if pid != root and (ancestor == root or process.group == group):
            found.append(process)
    return found


def _from_proc() -> Iterator[tuple[int, tuple[int, Process]]]:
    page = os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name stands in parentheses, and may hold any of them.
                before, _, after = file.read().rpartition(b")")
        except OSError:
            continue  # It has ended meanwhile.
        fields = after.split()
        if fields[0] not in (b"Z", b"X"):
            shown = before.partition(b"(")[2].decode("utf-8", "replace")
            process = Process(int(name), int(fields[2]), int(fields[21]) * page, shown)
            yield int(name), (int(fields[1]), process)


def _from_ps() -> Iterator[tuple[int, tuple[int, Process]]]:
    command = ["/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,rss=,state=,comm="]
    for line in subprocess.run(command, capture_output=True, check=True).stdout.splitlines():
        pid, parent, group, kilobytes, state, name = line.split(None, 5)
        if not state.startswith(b"Z"):
            shown = os.path.basename(name.decode("utf-8", "replace"))
            process = Process(int(pid), int(group), int(kilobytes) * 1024, shown)
            yield int(pid), (int(parent), process)


# -- the program -------------------------------------------------------------------------


class Warden:
    """One program under supervision."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._adopting, prepare = _system()
        self._socket, theirs = socket.socketpair()
        self._outputs, writing = os.pipe()
        os.set_blocking(self._outputs, False)
        program = subprocess.Popen(
            [*spec["argv"], str(theirs.fileno())],
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            preexec_fn=prepare,
        )
        theirs.close()
        os.close(writing)
        self.pid = program.pid
        self._code: int | None = None
        self._output = b""
        self._answers = b""

    def watch(self) -> dict[str, Any] | None:
        """Until the program ends or has to be ended; None if nobody wants to know any more."""
        self._socket.sendall(json.dumps(self._spec["request"]).encode() + b"\n")
        self._socket.setblocking(False)
        how = self._until_over()
        left: list[Process] = []
        if how == "ended":
            left = self._those_who_stay()
        self._kill_all()
        self._read_outputs()
        self._read_answers()
        if how == "abandoned":
            return None
        return {
            "how": how,
            "code": self._code,
            "answers": self._answers.decode("utf-8", "replace"),
            "output": self._output.decode("utf-8", "replace"),
            "left": [process.name for process in left],
        }

    def _until_over(self) -> str:
        limit = time.monotonic() + START_SECONDS
        started = False
        asker = sys.stdin.fileno()
        sources: list[Any] = [asker, self._outputs, self._socket]
        while True:
            readable = select.select(sources, [], [], POLL_SECONDS)[0]
            if asker in readable and not os.read(asker, 4096):
                return "abandoned"
            if self._outputs in readable and not self._read_outputs():
                sources.remove(self._outputs)
            if self._socket in readable and not self._read_answers():
                sources.remove(self._socket)
            if self._answers and not started:
                started, limit = True, time.monotonic() + self._spec["seconds"]
            self._reap()
            if self._code is not None:
                return "ended"
            if time.monotonic() > limit:
                return "time"
            if len(self._answers) > ANSWER_BYTES:
                return "answers"
            if sum(process.resident for process in self._running()) > self._spec["bytes"]:
                return "memory"

    def _read_outputs(self) -> bool:
        """Read what is there, keep the end of it; False when there will be no more."""
        # A bounded number of times: somebody may write faster than this reads.
        for _ in range(64):
            try:
                data = os.read(self._outputs, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._output = (self._output + data)[-OUTPUT_BYTES:]
        return True

    def _read_answers(self) -> bool:
        while len(self._answers) <= ANSWER_BYTES:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            self._answers += data
        return True

    def _running(self) -> list[Process]:
        return descendants(os.getpid(), self.pid)

    def _reap(self) -> bool:
        """Take the exit statuses of those who ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _gone(self) -> bool:
        """Whether nothing is left; where orphans are adopted, that is certain."""
        any_child = self._reap()
        return not any_child if self._adopting else not self._running()

    def _those_who_stay(self) -> list[Process]:
        limit = time.monotonic() + LEAVING_SECONDS
        while not self._gone() and time.monotonic() < limit:
            self._read_outputs()
            time.sleep(0.01)
        return self._running()

    def _kill_all(self) -> None:
        limit = time.monotonic() + KILL_SECONDS
        while not self._gone() and time.monotonic() < limit:
            for process in self._running():
                # A group is killed at one stroke, which a fork in it cannot outrun.
                if process.group != os.getpgrp():
                    _kill(os.killpg, process.group)
                _kill(os.kill, process.pid)
            time.sleep(0.002)


def _kill(send: Callable[[int, int], None], number: int) -> None:
    try:
        send(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # It ended meanwhile, or belongs to somebody else.


def _system() -> tuple[bool, Callable[[], None]]:
    """Become the subreaper, if the system can; and what the program does before it starts."""
    import resource

    prctl: Any = None
    if sys.platform.startswith("linux"):
        import ctypes

        prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if prctl is not None:
            # If the warden is killed, the program is.
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, prepare


def _forbid_inspection() -> None:
    """As `amplifier_support.process_privacy`, which cannot be imported here."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
    """Serve one request."""
    # The request has keys in it.
    _forbid_inspection()
    warden = Warden(json.loads(sys.stdin.buffer.readline()))
    print(warden.pid, flush=True)
    ended = warden.watch()
    if ended is not None:
        print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
