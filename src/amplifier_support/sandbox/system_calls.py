"""System calls that Python has no function for.

The launcher of commands imports this: nothing here may cost as much as starting a command.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_PIDFD_GETFD = 438
_VERSION = 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
ARCHITECTURES = tuple(_SECCOMP)
"""The machines that there is a seccomp filter for."""

_SET_FILTER, _NEW_LISTENER = 1, 8
_INSTRUCTION_BYTES = 8
_PATH_BENEATH = 1
_READ = 1 << 0 | 1 << 2 | 1 << 3
_USE = 1 << 1 | 1 << 2 | 1 << 3
_OWN_MOUNTS = (
    ("/proc", (_READ,)),
    ("/dev", (_READ,)),
    ("/run", (_READ,)),
    # What hides others: see `entering`.
    ("/dev/.folder", (_READ,)),
    ("/dev/.file", (1 << 2,)),
    # With what versions 5 and 3 have in addition: control devices, and truncate.
    ("/dev/pts", (_USE | 1 << 14 | 1 << 15, _USE | 1 << 14, _USE)),
)
ASK, REFUSE = (
    (0x06).to_bytes(4, sys.byteorder) + action.to_bytes(4, sys.byteorder)
    for action in (0x7FC00000, 0x50000 | errno.EPERM)
)
"""Instructions of a filter: to ask about the system call, and to refuse it."""

_CAPABILITY_VERSION = 0x20080522
# What the superuser needs for ordinary files: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID,
# NET_BIND_SERVICE. Others would lead around the restrictions: FSETID keeps the set-user-ID bit of a program
# that is written to, and PERFMON reads the memory of other processes.
_KEPT_CAPABILITIES = sum(1 << number for number in (0, 1, 3, 5, 6, 7, 10))

libc = ctypes.CDLL(None, use_errno=True)


def forbid_inspection() -> None:
    """Make this process's environment and memory unreadable to other processes of the user.

    That includes every command started from here, which otherwise could read the keys this process
    was started with from `/proc`. The superuser still can. Debuggers of the user are kept out as
    well, and there are no core dumps. It holds until another program is executed in this process;
    a fork inherits it. Systems other than Linux have nothing like it; there this does nothing.

    Raises:
        OSError: The system refused.
    """
    if sys.platform != "linux":
        return
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the system does not support PR_SET_DUMPABLE")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def landlock_version() -> int:
    """The version of Landlock's interface.

    Raises:
        OSError: The system has no Landlock, or it is not enabled.
    """
    return system_call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)


def create_ruleset(attributes: bytes) -> int:
    """Create a Landlock rule set.

    Raises:
        OSError: The system refused.
    """
    return system_call(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)


def add_rule(ruleset: int, access: int, folder: int) -> None:
    """Add a rule to a Landlock rule set: `access` to what a descriptor leads to, and all below it.

    Raises:
        OSError: The system refused.
    """
    attributes = access.to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
    system_call(_LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, attributes, 0)


def permit_own_mounts(ruleset: int) -> None:
    """Add what a launcher in namespaces of its own mounted to a Landlock rule set.

    There `/proc`, `/dev`, `/run`, the pseudo-terminals and what hides others are none of the system's.

    Raises:
        OSError: The system refused.
    """
    for path, accesses in _OWN_MOUNTS:
        if not os.path.exists(path):
            continue
        folder = os.open(path, os.O_PATH)
        try:
            _permit(ruleset, folder, accesses)
        finally:
            os.close(folder)


def _permit(ruleset: int, folder: int, accesses: tuple[int, ...]) -> None:
    """Permit the first of `accesses` that this version of Landlock knows."""
    for access in accesses:
        try:
            return add_rule(ruleset, access, folder)
        except OSError as error:
            if error.errno != errno.EINVAL or access == accesses[-1]:
                raise


def restrict(ruleset: int, filter: bytes, *, asks: bool) -> int:
    """Restrict the calling thread and everything it starts, for good.

    Args:
        ruleset: Descriptor of a Landlock rule set.
        filter: Instructions of a seccomp filter.
        asks: Whether the filter has some system calls decided by another process.

    Returns:
        The descriptor on which the kernel asks; -1 if it does not.

    Raises:
        OSError: The system refused; the restrictions may apply in part.
    """
    drop_privileges()
    system_call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    program = _Program(len(filter) // _INSTRUCTION_BYTES, filter)
    if asks:
        number = _SECCOMP[os.uname().machine]
        try:
            return system_call(number, _SET_FILTER, _NEW_LISTENER, ctypes.byref(program))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        # This runs in another sandbox that is asked already, and only one can be.
        filter = filter.replace(ASK, REFUSE)
        program = _Program(len(filter) // _INSTRUCTION_BYTES, filter)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise last_error()
    return -1


def copy_descriptor(process: int, descriptor: int) -> int:
    """A copy of a descriptor of another process.

    Raises:
        OSError: There is no such process or descriptor, or it is out of reach.
    """
    of_process = os.pidfd_open(process)
    try:
        return system_call(_PIDFD_GETFD, of_process, descriptor, 0)
    finally:
        os.close(of_process)


def connect(descriptor: int, address: bytes, seconds: float) -> int:
    """Connect a socket and return 0 or the number of an error; EAGAIN after `seconds`.

    Its owner, who shares the socket, cannot make this wait for longer: a timer interrupts it.
    """
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    until = time.monotonic() + seconds
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        while libc.connect(descriptor, address, len(address)) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                return number
            if time.monotonic() >= until:
                return errno.EAGAIN
        return 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def has_seccomp_filters() -> bool:
    """Return True if the system has seccomp filters: it then complains about the address, not the mode."""
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == 14


def drop_privileges(*, files_of_others: bool = True) -> None:
    """Give up what leads around the restrictions, for this thread and everything it starts.

    Args:
        files_of_others: Keep the capabilities for work on files of other users, if it has them.

    Raises:
        OSError: The system refused.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Effective, permitted and inheritable ones, first the lower half of each.
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) != 0:
        raise last_error()
    keep = _KEPT_CAPABILITIES if files_of_others else 0
    kept = (ctypes.c_uint32 * 6)(*(held & keep for held in sets[:3]), 0, 0, 0)
    if bytes(kept) != bytes(sets) and libc.capset(header, kept) != 0:
        raise last_error()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise last_error()


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call.

    Raises:
        OSError: It failed.
    """
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise last_error()
    return result


def last_error(place: str | None = None) -> OSError:
    """The error of the last call of the C library, at a place."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), place)
