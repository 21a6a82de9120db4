"""The processes below this one: finding them, ending them, and adopting what they leave behind.

For programs that are responsible for everything they start. They run in a lean interpreter, and
some start once per burst of commands. Nothing slow is imported here: `signal` and `socket` would
cost as much as everything else together.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    Table = dict[int, tuple[int, int, bool]]
else:
    import _signal as signal

if sys.platform == "linux":
    import ctypes

GRACE_SECONDS = 0.5
"""Between SIGTERM and SIGKILL."""

KILL_SECONDS = 5.0
"""After this the caller gets what is still alive, such as processes of another user."""

CROWD = 200
"""This many processes are killed without SIGTERM: there may soon be more."""

_PR_SET_CHILD_SUBREAPER = 36


def adopter() -> Callable[[], bool]:
    """A function that makes the calling process the subreaper of all it starts; False if it cannot."""
    if sys.platform != "linux":
        return lambda: False
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


# -- finding them ------------------------------------------------------------------------


def process_table() -> Table:
    """Parent, process group and whether it is a zombie, by pid, of every process."""
    if os.path.isdir("/proc/self"):
        return _table_from_proc()
    return _table_from_ps()


def _table_from_proc() -> Table:
    return {int(name): _look_up(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def _look_up(pid: int) -> tuple[int, int, bool]:
    """An entry of the process table; a zombie without owner if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name is in parentheses and may itself contain parentheses.
            facts = file.read().rpartition(b")")[2].split()
            state, parent, group, threads = *facts[:3], facts[17]
    except (OSError, IndexError):
        return 0, 0, True
    # A process whose first thread has ended looks like a zombie, but other threads may go on.
    return int(parent), int(group), state in b"ZX" and int(threads) < 2


def _table_from_ps() -> Table:
    import subprocess

    table: Table = {}
    command = ["/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,state="]
    for line in subprocess.run(command, capture_output=True, check=True).stdout.splitlines():
        pid, parent, group, state = line.split()[:4]
        table[int(pid)] = (int(parent), int(group), state.startswith(b"Z"))
    return table


def descendants(root: int, spared: frozenset[int] = frozenset(), group: int = 0) -> list[int]:
    """Living processes below `root`, and those of `group`; not `spared` nor what is below those.

    A process that forks and ends all the time may be missed; only a `reap` that finds no child
    shows that nothing is left.
    """
    if group or not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _descendants_from_table(root, spared, group)
    pids = _closure(_children(root), _children, spared)
    return sorted(pid for pid in pids if not _look_up(pid)[2])


def _children(pid: int) -> list[int]:
    """Children as the kernel lists them, zombies included.

    This is fast enough to catch what forks and ends, which reading all of /proc is not.
    """
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # The process, or one of its threads, has ended.
    return children


def _descendants_from_table(root: int, spared: frozenset[int], group: int) -> list[int]:
    table = process_table()
    by_parent: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        by_parent.setdefault(parent, []).append(pid)
    members = [pid for pid, entry in table.items() if group and entry[1] == group]
    first = [*by_parent.get(root, ()), *members]
    pids = _closure(first, lambda pid: by_parent.get(pid, []), spared)
    return sorted(pid for pid in pids - {os.getpid()} if not table[pid][2])


def _closure(
    first: list[int], children_of: Callable[[int], list[int]], spared: frozenset[int]
) -> set[int]:
    closure: set[int] = set()
    waiting = first
    while waiting:
        pid = waiting.pop()
        if pid not in spared and pid not in closure:
            closure.add(pid)
            waiting += children_of(pid)
    return closure


# -- ending them -------------------------------------------------------------------------


def kill_all(
    running: Callable[[], list[int]], over: Callable[[], bool], grace: float = GRACE_SECONDS
) -> list[int]:
    """End what `running()` lists, with SIGTERM and then with SIGKILL, until `over()`.

    Args:
        running: The processes to end.
        over: Reaps, and says whether nothing is left.
        grace: Seconds between SIGTERM and SIGKILL; with 0 there is no SIGTERM.

    Returns:
        What has not ended in `KILL_SECONDS`.
    """
    left = running()
    if grace and len(left) <= CROWD:
        _signal(left, signal.SIGTERM, signal.SIGCONT)
        if _comes_true(over, grace):
            return []
    until = time.monotonic() + KILL_SECONDS
    pause = 0.0
    while not over():
        before, left = left, running()
        _kill_groups(left)
        _signal(left, signal.SIGKILL)
        if time.monotonic() > until:
            return left
        # Almost no pause while new ones appear: they live for a millisecond or two.
        pause = min(pause * 2, 0.02) if left == before else 0.0002
        time.sleep(pause)
    return []


def _comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    pause = 0.001
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def _kill_groups(pids: list[int]) -> None:
    """Kill the process groups of `pids`, none of which may be this process's own.

    A group is killed as a whole, so that no fork in it escapes.
    """
    known = {os.getpid(), *pids}
    entries = map(_look_up, pids)
    # The parent is checked again: the pid may belong to an unrelated process by now.
    groups = {group for parent, group, _ in entries if parent in known}
    for group in groups - {0, os.getpgrp()}:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # As in `_signal`.


def _signal(pids: list[int], *numbers: int) -> None:
    for pid in pids:
        for number in numbers:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # It ended meanwhile, or belongs to another user: the next look shows.


def reap() -> tuple[dict[int, int], bool]:
    """Exit statuses of children that ended, by pid, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status
