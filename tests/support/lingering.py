"""Ways in which a command leaves processes behind, all of them in one command.

    lingering = Lingering(tmp_path)
    ...                                  # have `lingering.command` run by what should end it
    assert wait_until(lambda: not lingering.missing(), 30)
    ...                                  # end it
    assert wait_until(lambda: not lingering.left(), 2)

Each process that is to stay holds a lock on a file of its own, so that it is found wherever it is: stopped,
renamed, in another namespace, or with another program in its place.
"""

import fcntl
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

# $KEEP is a process that stays, and makes the file $STARTED; what follows names tricks of it, see
# `lingering_process.py`.
WAYS = {
    # Where it is among the processes.
    "in the foreground": "$KEEP",
    "in the background": "$KEEP & sleep 0.1",
    "a child of a child": "(($KEEP; true); true)",
    "double fork": "($KEEP &)",
    "triple fork": "((($KEEP &) &) &)",
    "session": "setsid $KEEP &",
    "session, forked": "setsid -f $KEEP",
    "session in a session": "setsid -f setsid -f setsid -f $KEEP",
    "double fork and session": "(setsid bash -c '$KEEP & exit' &)",
    "nohup": "nohup $KEEP >/dev/null 2>&1 &",
    "disowned": "$KEEP & disown -h; disown -a",
    "nohup, disowned, session": "nohup setsid $KEEP </dev/null >/dev/null 2>&1 & disown",
    "job control": "set -m; $KEEP & sleep 0.1",
    "daemon": "$KEEP daemon",
    "as a service manager starts it": "cd /; exec setsid -f env -i $KEEP daemon",
    "nothing in its environment": "exec env -i $KEEP &",
    "with a time limit": "timeout -s CONT 3000 $KEEP &",
    "sibling of its parent": "$KEEP sibling",
    "adopter of its orphans": "$KEEP adopter fork",
    "started by posix_spawn": "$KEEP spawn",
    "started by vfork": "$KEEP vfork",
    "parent suspended by vfork": "$KEEP suspended",
    "first process of a namespace": "unshare --pid --fork $KEEP ignore || $KEEP",
    "own user namespace": "unshare --user --pid --fork $KEEP || $KEEP",
    # What it does with signals.
    "ignores TERM": "$KEEP ignore",
    "ignores TERM by inheritance": "(trap '' TERM HUP INT QUIT; $KEEP &)",
    "blocks all signals": "$KEEP block",
    "catches signals": "$KEEP catch",
    "starts another when it is ended": "$KEEP again",
    "starts another at its exit": "trap 'setsid -f $KEEP' EXIT; $KEEP & wait",
    "session that ignores TERM": "setsid $KEEP ignore &",
    "ignores the end of its children": "$KEEP childless fork",
    # The state it is in.
    "stopped": "$KEEP stop",
    "stopped and ignoring": "$KEEP ignore stop",
    "stopped with its group": (
        "setsid bash -c '$KEEP & until [ -e $STARTED ]; do sleep 0.1; done; kill -STOP 0' &"
    ),
    "first thread ended": "$KEEP headless",
    "first thread ended, in a session": "setsid -f $KEEP ignore headless",
    "waits to open a pipe": "$KEEP fifo",
    "traced": "$KEEP traced",
    "lowest priority": "$KEEP idle",
    "never the same process": "$KEEP hop",
    "parent of a crowd": "$KEEP crowd",
    "parent of zombies": "$KEEP zombies",
    # What it looks like.
    "renamed": "$KEEP rename",
    "looks like a kernel thread": "exec -a '[kworker/0:1]' $KEEP &",
    "program removed": "$KEEP removed",
    # What it holds.
    "streams closed": "$KEEP <&- >&- 2>&- &",
    "writes to a reader": "$KEEP | cat",
    "process substitution": ": > >($KEEP)",
    "coprocess": "coproc $KEEP; sleep 0.1",
    "command substitution": "x=$($KEEP >/dev/null &)",
    "terminal of its own": "$KEEP terminal",
}
"""Lines of bash by what they leave behind."""

HARDEST = (
    *("double fork and session", "daemon", "adopter of its orphans", "parent suspended by vfork"),
    *("own user namespace", "blocks all signals", "starts another when it is ended"),
    *("starts another at its exit", "stopped with its group", "first thread ended, in a session"),
    *("traced", "never the same process", "parent of a crowd", "streams closed"),
)
"""The ways that each take something of their own to be ended, where another test has all of them."""

_PROGRAM = Path(__file__).with_name("lingering_process.py")


class Lingering:
    """The processes that a command leaves behind.

    Args:
        folder: Gets a folder of theirs; a command in the sandbox must be able to write there.
        ways: Which of `WAYS`; starting all of them takes a second of a core.

    Attributes:
        command: A line for a shell that starts all of them and waits.
    """

    def __init__(self, folder: Path, ways: Iterable[str] = WAYS) -> None:
        self._ways = {name: WAYS[name] for name in ways}
        self._folder = folder / "lingering"
        self._folder.mkdir()
        # Where commands in the sandbox find it.
        program = shutil.copy(_PROGRAM, self._folder)
        keep = shlex.join([sys.executable, "-I", "-S", str(program)])
        lines = [
            f"KEEP={shlex.quote(f'{keep} {number}')} STARTED={shlex.quote(str(self._started(number)))} "
            f"bash -c {shlex.quote(line)} &"
            for number, line in enumerate(self._ways.values())
        ]
        script = self._folder / "start.sh"
        script.write_text("\n".join([*lines, "sleep 3000", ""]))
        self.command = shlex.join(["bash", str(script)])

    def missing(self) -> list[str]:
        """The ways that have left nothing yet."""
        return [
            name for number, name in enumerate(self._ways) if not self._started(number).exists()
        ]

    def _started(self, number: int) -> Path:
        return self._folder / f"{number}.started"

    def left(self) -> list[str]:
        """The ways of which a process is left."""
        return [
            name
            for number, name in enumerate(self._ways)
            if _is_held(self._folder / f"{number}.lock")
        ]

    def are_nearly_all_left(self) -> bool:
        """Whether the command has left what it should; a machine may not allow some ways."""
        return len(self.left()) > 0.85 * len(self._ways)


def _is_held(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
