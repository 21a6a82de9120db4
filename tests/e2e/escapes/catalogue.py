"""The numbered attempts, and the program that makes them.

    python -I catalogue.py SITUATION.json [NUMBER ...]

prints one JSON object for each: number, `succeeded`, and what happened. An attempt raises if it was
refused and returns if it believes that it got out. What was seen from outside counts as well.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

GROUPS = ("files", "mounts", "processes", "system", "network", "repository")
_LIMIT_SECONDS = 5

libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The attempt could not do what it wanted."""


class Attempt(NamedTuple):
    """One attempt.

    Attributes:
        number: Its number.
        level: The weakest level of the sandbox that must stop it: ``kernel`` or ``namespaces``.
        what: What it tries.
        run: Makes it.
    """

    number: int
    level: str
    what: str
    run: Callable[[Situation], object]


class Situation:
    """What an attempt knows: the paths, processes and servers outside that it aims at.

    Attributes:
        outside: A folder outside of the writable ones, with the file `canary` and the folder `empty`.
        workspace: The working directory.
        home: The user's home directory; the working directory, or not writable either.
        secrets: Files that commands must not read, some of them in the working directory.
        controls: Files and folders in it whose contents run later.
        victim: Pid of a process outside, of the same user.
        address: Where the victim keeps a text in its memory.
        descriptor: The victim's descriptor of the canary, open for writing.
        ports: Ports of listeners on loopback, by kind: ``tcp``, ``tcp6``, ``udp``, ``udp6``.
        network: The inode of the network namespace outside.
        sockets: Listeners on UNIX sockets, by kind: ``abstract``, ``abstract-datagram``, ``path``,
            ``path-datagram``.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self.outside = facts["outside"]
        self.workspace = facts["workspace"]
        self.home = facts["home"]
        self.secrets: list[str] = facts["secrets"]
        self.controls: list[str] = facts["controls"]
        self.victim: int = facts["victim"]
        self.address: int = facts["address"]
        self.descriptor: int = facts["descriptor"]
        self.ports: dict[str, int] = facts["ports"]
        self.network: int = facts["network"]
        self.sockets: dict[str, str] = facts["sockets"]

    @property
    def canary(self) -> str:
        return os.path.join(self.outside, "canary")

    def processes(self) -> list[int]:
        """Pids of processes that this one did not start: the victim, the program and its helpers."""
        own, pid = set[int](), os.getpid()
        while pid > 1:
            own.add(pid)
            parent = _parent(pid)
            # The command is the leader of its session; what started it is outside.
            if os.getsid(0) == pid:
                break
            pid = parent
        found = (int(name) for name in os.listdir("/proc") if name.isdigit())
        others = {pid for pid in found if pid not in own}
        return sorted(others | {self.victim})

    def launchers(self) -> list[int]:
        """The processes that started this command, from the nearest to the program itself."""
        found: list[int] = []
        pid = _parent(os.getsid(0)) if os.getsid(0) else 0
        while pid > 1:
            found.append(pid)
            pid = _parent(pid)
        return [*found, 1]


_attempts: dict[int, Attempt] = {}


def attempt(number: int, level: str, what: str) -> Callable[[Any], Any]:
    """Register an attempt."""

    def register(run: Callable[[Situation], object]) -> Callable[[Situation], object]:
        assert number not in _attempts, number
        _attempts[number] = Attempt(number, level, what, run)
        return run

    return register


def all_attempts() -> list[Attempt]:
    """Every attempt, by number."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # The files import this one by its plain name.
    sys.modules["catalogue"] = sys.modules[__name__]
    for group in GROUPS:
        importlib.import_module(f"attempts_{group}")
    return [_attempts[number] for number in sorted(_attempts)]


def checked(result: int, what: str = "") -> int:
    """The result of a call of the C library. Raises OSError if it is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call. Raises OSError if it fails."""
    return checked(libc.syscall(ctypes.c_long(number), *arguments), f"system call {number}")


def any_of(attempts: list[Callable[[], object]]) -> None:
    """Make several attempts; one that succeeds is enough. Raises Refused if none does."""
    problems: list[str] = []
    for one in attempts:
        try:
            one()
        except (OSError, Refused) as error:
            problems.append(str(error))
        else:
            return
    raise Refused("; ".join(dict.fromkeys(problems)) or "there is nothing to try it on")


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _made(one: Attempt, situation: Situation) -> dict[str, Any]:
    """Make an attempt in a process of its own, so that it cannot spoil the others."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.chdir(situation.workspace)
        signal.alarm(_LIMIT_SECONDS)
        succeeded, said = False, ""
        try:
            said = repr(one.run(situation))
            succeeded = True
        except (OSError, Refused) as error:
            named = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
            said = f"{named} {error}".strip()
        except BaseException:
            said = f"the attempt is broken: {traceback.format_exc()}"
        os.write(writing, json.dumps([succeeded, said[-2000:]]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    succeeded, said = json.loads(answer) if answer else (False, f"killed, status {status}")
    return {"number": one.number, "succeeded": succeeded, "said": said}


def main() -> None:
    situation = Situation(json.loads(Path(sys.argv[1]).read_text()))
    wanted = set(map(int, sys.argv[2:]))
    for one in all_attempts():
        if not wanted or one.number in wanted:
            print(json.dumps(_made(one, situation)), flush=True)


if __name__ == "__main__":
    main()
