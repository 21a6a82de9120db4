"""Runs one program with limits and ends everything it started; the `main` of its own program.

It reads one line of JSON from stdin, `{"argv", "cwd", "seconds", "bytes", "request"}`, and starts
`argv` with the descriptor of a socket as the last argument. The program reads `request` (one line)
from the socket and writes its answers (lines) to it; its output goes to a pipe of this
process, which writes two lines to stdout: the program's pid, then, when no process of it is left,

    {"how": "ended" | "time" | "memory" | "answers", "code", "answers", "output", "left"}

If stdin ends first, the parent is gone: everything is killed and nothing is written.

On Linux it is the subreaper of every process below it, so that processes that fork twice or start a
new session are still found. Elsewhere a process that left both its parent and its group escapes.

`supervisor` finds and ends processes in the same way (`process_tree`), but is a program of its own: it
starts many commands at little cost, this one a single program that has limits.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

if sys.platform == "linux":
    import ctypes

from amplifier_support import process_tree
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox.system_calls import forbid_inspection

OUTPUT_BYTES = 16 * 1024
"""Number of bytes kept of the end of the output."""

ANSWER_BYTES = 8 * 1024 * 1024
"""Limit of the program's answers; it is stopped beyond that."""

START_SECONDS = 120.0
"""Time limit for the program's first answer."""

POLL_SECONDS = 0.1
LEAVING_SECONDS = 0.5
"""Seconds that processes left after the program's end have to end by themselves."""

_PR_SET_PDEATHSIG = 1


class Process(NamedTuple):
    """A living process below this one. `resident` is in bytes."""

    resident: int
    name: str


# -- what is running ---------------------------------------------------------------------


def look_up(pids: list[int]) -> list[Process]:
    """The processes among `pids` that still exist."""
    if os.path.isdir("/proc/self"):
        return list(_from_proc(pids))
    return list(_from_ps(pids))


def _from_proc(pids: list[int]) -> Iterator[Process]:
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name is in parentheses, and may itself contain some.
                before, _, after = file.read().rpartition(b")")
        except OSError:
            continue  # It has ended in the meantime.
        name = before.partition(b"(")[2].decode("utf-8", "replace")
        yield Process(int(after.split()[21]) * page, name)


def _from_ps(pids: list[int]) -> Iterator[Process]:
    command = ["/bin/ps", "-o", "rss=,comm=", "-p", ",".join(map(str, pids))]
    # It fails if none of them exists any more.
    for line in subprocess.run(command, capture_output=True, check=False).stdout.splitlines():
        kilobytes, name = line.split(None, 1)
        yield Process(int(kilobytes) * 1024, os.path.basename(name.decode("utf-8", "replace")))


# -- the program -------------------------------------------------------------------------


class LimitedProgram:
    """One program under supervision."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._adopting = process_tree.adopter()()
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
            preexec_fn=_preparation(),
        )
        theirs.close()
        os.close(writing)
        self.pid = program.pid
        self._code: int | None = None
        self._output = b""
        self._answers = b""

    def watch(self) -> dict[str, Any] | None:
        """Watch the program until it ends or is stopped; None if the parent is gone."""
        self._socket.sendall(json.dumps(self._spec["request"]).encode() + b"\n")
        self._socket.setblocking(False)
        how = self._until_over()
        left: list[Process] = []
        if how == "ended":
            left = self._remaining()
        process_tree.kill_all(self._running, self._have_all_ended, grace=0)
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
        now = time.monotonic()
        limit, next_look, started = now + START_SECONDS, now, False
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
            now = time.monotonic()
            if self._answers and not started:
                started, limit = True, now + self._spec["seconds"]
            self._reap()
            if self._code is not None:
                return "ended"
            if now > limit:
                return "time"
            if len(self._answers) > ANSWER_BYTES:
                return "answers"
            if now < next_look:
                continue
            next_look = now + POLL_SECONDS
            if sum(each.resident for each in look_up(self._running())) > self._spec["bytes"]:
                return "memory"

    def _read_outputs(self) -> bool:
        """Read what is available and keep the end of it; False at the end of the output."""
        # Bounded, as a process may write faster than this reads.
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

    def _running(self) -> list[int]:
        group = 0 if self._adopting else self.pid
        return process_tree.descendants(os.getpid(), group=group)

    def _reap(self) -> bool:
        """Collect exit statuses; return whether any child is left."""
        ended, any_left = process_tree.reap()
        if self.pid in ended:
            self._code = os.waitstatus_to_exitcode(ended[self.pid])
        return any_left

    def _have_all_ended(self) -> bool:
        """Return True if no process is left; certain where orphans are adopted."""
        any_child = self._reap()
        return not any_child if self._adopting else not self._running()

    def _remaining(self) -> list[Process]:
        limit = time.monotonic() + LEAVING_SECONDS
        while not self._have_all_ended() and time.monotonic() < limit:
            self._read_outputs()
            time.sleep(0.01)
        return look_up(self._running())


def _preparation() -> Callable[[], None]:
    """Return the function that the program runs before it starts."""
    prctl: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if prctl is not None:
            # If this process is killed, so is the program.
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return prepare


def main() -> None:
    """Serve one request."""
    # The request contains keys.
    forbid_inspection()
    program = LimitedProgram(json.loads(sys.stdin.buffer.readline()))
    print(program.pid, flush=True)
    ended = program.watch()
    if ended is not None:
        print(json.dumps(ended), flush=True)
