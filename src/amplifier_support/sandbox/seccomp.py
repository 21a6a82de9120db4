"""A seccomp filter: which system calls a process may make.

It covers what Landlock does not: sockets other than those of the local machine, access to other processes' memory,
name spaces and mounts, kernel interfaces with a long history of faults, input faked on a terminal, and
programs that would run with the rights of their owner.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox.system_calls import ASK

_LOAD = 0x20
_AND = 0x54
_IF_EQUAL = 0x15
_IF_GREATER_OR_EQUAL = 0x35
_IF_ANY_BIT = 0x45
_RETURN = 0x06

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERROR = 0x00050000

_NUMBER = 0
_ARCHITECTURE = 4
_X32 = 0x40000000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCKET_KIND = 1, 5, 0xF
_CLONE_NEW = 0x7E020080
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Of btrfs in two versions, and of bcachefs: a copy of all that is below a folder, whatever hides it.
_SNAPSHOTS = (0x50009401, 0x50009417, 0x4020BC10)
_O_ACCMODE, _O_CREAT, _O_TRUNC, _O_TMPFILE = 0o3, 0o100, 0o1000, 0o20000000
_S_ISUID, _S_ISGID = 0o4000, 0o2000
# Set in the types of character and block devices, but of nothing else that `mknod` makes.
_DEVICE = 0o20000

REFUSED = (
    # Other processes.
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
    # Mounts and name spaces.
    "mount", "umount2", "pivot_root", "chroot", "setns", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "open_tree_attr",
    # Files by handle, which no path leads to.
    "open_by_handle_at", "fanotify_init",
    # Interfaces of the kernel that programs seldom need.
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "userfaultfd", "perf_event_open",
    "add_key", "request_key", "keyctl",
    # The machine.
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon",
    "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "sethostname", "setdomainname", "settimeofday",
    "clock_settime", "clock_adjtime", "adjtimex", "iopl", "ioperm",
)  # fmt: skip
SHARED_BY_NUMBER = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv",
    "msgctl", "mq_open", "mq_unlink",
)  # fmt: skip
"""Memory, semaphores and queues that all processes of a user share, and that no path leads to."""

_CALLS: Mapping[str, tuple[int, int | None]] = {
    "open": (2, None),
    "ioctl": (16, 29),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "socket": (41, 198),
    "connect": (42, 203),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "truncate": (76, 45),
    "creat": (85, None),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "mknod": (133, None),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "semtimedop": (220, 192),
    "clock_settime": (227, 112),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "openat": (257, 56),
    "mknodat": (259, 33),
    "fchmodat": (268, 53),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
}
"""The numbers of system calls on x86_64 and on aarch64, which lacks some of them."""

_NEWER: Mapping[str, int] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "fchmodat2": 452,
    "open_tree_attr": 467,
}
"""The numbers of newer system calls, which are the same everywhere."""


class Architecture(NamedTuple):
    """Numbers of an architecture.

    Attributes:
        audit: Its number in what the filter sees.
        calls: The number of each system call; those it does not have are missing.
    """

    audit: int
    calls: Mapping[str, int]


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        0xC000003E, {name: number for name, (number, _) in _CALLS.items()} | _NEWER
    ),
    "aarch64": Architecture(
        0xC00000B7,
        {name: number for name, (_, number) in _CALLS.items() if number is not None} | _NEWER,
    ),
}


def architecture() -> Architecture | None:
    """This machine's; None if there is no filter for it."""
    return ARCHITECTURES.get(os.uname().machine)


def build(
    architecture: Architecture,
    *,
    internet: bool,
    truncation: bool,
    superuser: bool,
    asks: bool = False,
    shares: bool = True,
) -> bytes:
    """The instructions of the filter.

    Args:
        architecture: The machine's.
        internet: Whether sockets for the internet are allowed.
        truncation: Whether truncating files must be refused here, as Landlock does not know it.
        superuser: Whether commands run as root.
        asks: Whether the launcher decides about connections. Datagrams, which need none, are
            refused then.
        shares: Whether `SHARED_BY_NUMBER` is allowed.
    """
    calls = architecture.calls
    refuse = _return(_ERROR | errno.EPERM)
    missing = _return(_ERROR | errno.ENOSYS)
    program = [
        _load(_ARCHITECTURE),
        _jump(_IF_EQUAL, architecture.audit, 1, 0),
        _return(_KILL_PROCESS),
        _load(_NUMBER),
        # The other numbering of x86_64; elsewhere no number is as high.
        _jump(_IF_GREATER_OR_EQUAL, _X32, 0, 1),
        missing,
    ]
    for name in (*REFUSED, *(() if shares else SHARED_BY_NUMBER)):
        if name in calls:
            program += [_jump(_IF_EQUAL, calls[name], 0, 1), refuse]
    program += _sockets(calls, refuse, internet=internet, asks=asks)
    program += _processes(calls, refuse, missing)
    program += _files(calls, refuse, truncation=truncation, superuser=superuser)
    # Its arguments are in memory, which a filter cannot read; callers fall back to `openat`.
    program += [_jump(_IF_EQUAL, calls["openat2"], 0, 1), missing]
    return b"".join([*program, _return(_ALLOW)])


def _sockets(calls: Mapping[str, int], refuse: bytes, *, internet: bool, asks: bool) -> list[bytes]:
    """Refuse sockets of other families, and leave connections to the launcher where it decides."""
    program: list[bytes] = []
    families = (*(() if asks else (_AF_UNIX,)), *((_AF_INET, _AF_INET6) if internet else ()))
    body = [_argument(0)]
    for family in families:
        body += [_jump(_IF_EQUAL, family, 0, 1), _return(_ALLOW)]
    if internet:
        # Protocol 0 lists the network's interfaces and routes.
        body += [_jump(_IF_EQUAL, _AF_NETLINK, 0, 3), _argument(2)]
        body += [_jump(_IF_EQUAL, 0, 0, 1), _return(_ALLOW)]
    if asks:
        # Every other kind, also a raw one, sends datagrams.
        connected = [_argument(1), _masked(_SOCKET_KIND)]
        for kind in (_SOCK_STREAM, _SOCK_SEQPACKET):
            connected += [_jump(_IF_EQUAL, kind, 0, 1), _return(_ALLOW)]
        body += _on(_AF_UNIX, [*connected, refuse])
        program += _on(calls["connect"], [ASK])
        program += _on(calls["socketpair"], [*connected, refuse])
    return [*program, *_on(calls["socket"], [*body, refuse])]


def _processes(calls: Mapping[str, int], refuse: bytes, missing: bytes) -> list[bytes]:
    """Refuse the limits of other processes, namespaces, input to a terminal, and snapshots."""
    program = _on(
        calls["prlimit64"],
        [_argument(0), _jump(_IF_EQUAL, 0, 1, 0), refuse, _return(_ALLOW)],
    )
    # Its flags are in memory, which a filter cannot read; the C library falls back to `clone`.
    program += [_jump(_IF_EQUAL, calls["clone3"], 0, 1), missing]
    for name in ("clone", "unshare"):
        program += _on(
            calls[name],
            [_argument(0), _jump(_IF_ANY_BIT, _CLONE_NEW, 0, 1), refuse, _return(_ALLOW)],
        )
    controls = [_argument(1)]
    for control in (_TIOCSTI, _TIOCLINUX, *_SNAPSHOTS):
        controls += [_jump(_IF_EQUAL, control, 0, 1), refuse]
    program += _on(calls["ioctl"], [*controls, _return(_ALLOW)])
    return program


def _files(
    calls: Mapping[str, int], refuse: bytes, *, truncation: bool, superuser: bool
) -> list[bytes]:
    """Refuse programs that would run with the rights of their owner or group, and devices.

    With `truncation`, also refuse what truncates a file that is not opened for writing.
    """
    set_id = _S_ISUID | _S_ISGID
    # Folders that pass on their group are common, and a filter cannot tell them from programs. Of all
    # users only root can give away the group of the disks.
    changed = set_id if superuser else _S_ISUID
    program: list[bytes] = []
    if truncation:
        program += [_jump(_IF_EQUAL, calls["truncate"], 0, 1), refuse]
    for name, mode, bits in (
        *(("chmod", 1, changed), ("fchmod", 1, changed)),
        *(("fchmodat", 2, changed), ("fchmodat2", 2, changed)),
        *(("mknod", 1, set_id | _DEVICE), ("mknodat", 2, set_id | _DEVICE), ("creat", 1, set_id)),
    ):
        if name in calls:
            program += _on(calls[name], [*_unless_set(mode, bits, refuse), _return(_ALLOW)])
    for name, flags in (("open", 1), ("openat", 2)):
        if name not in calls:
            continue
        body: list[bytes] = []
        if truncation:
            # A file that is opened for neither reading nor writing is truncated as well.
            body = [_argument(flags), _masked(_O_ACCMODE | _O_TRUNC)]
            for refused, skipped in ((_O_TRUNC, 1), (_O_TRUNC | _O_ACCMODE, 0)):
                body.append(_jump(_IF_EQUAL, refused, skipped, 1 - skipped))
            body.append(refuse)
        # Without these there is no mode, and the register holds anything.
        makes = [_argument(flags), _jump(_IF_ANY_BIT, _O_CREAT | _O_TMPFILE, 1, 0), _return(_ALLOW)]
        body += [*makes, *_unless_set(flags + 1, set_id, refuse), _return(_ALLOW)]
        program += _on(calls[name], body)
    return program


def _unless_set(argument: int, bits: int, refuse: bytes) -> list[bytes]:
    return [_argument(argument), _jump(_IF_ANY_BIT, bits, 0, 1), refuse]


def _on(number: int, body: Sequence[bytes]) -> list[bytes]:
    """Run `body`, which must return, if the number that was loaded is this one."""
    return [_jump(_IF_EQUAL, number, 0, len(body)), *body]


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", _LOAD, 0, 0, offset)


def _argument(index: int) -> bytes:
    """Load the lower half of an argument, which is all of a C `int`."""
    return _load(16 + 8 * index)


def _masked(bits: int) -> bytes:
    return struct.pack("=HBBI", _AND, 0, 0, bits)


def _jump(test: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", test, if_true, if_false, value)


def _return(value: int) -> bytes:
    return struct.pack("=HBBI", _RETURN, 0, 0, value)
