"""The kernel layer on Linux: a Landlock rule set and a seccomp filter for one policy.

Landlock only ever allows: a rule for a folder applies to everything below it. A folder is kept out
by rules for its siblings instead of its parent.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence

from amplifier_support.files import is_below, on_error
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox import seccomp, system_calls
from amplifier_support.sandbox.policy import Confinement
from amplifier_support.sandbox.system_calls import add_rule, create_ruleset

# -- landlock ----------------------------------------------------------------------------


_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_CHAR = 1 << 6
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_MAKE_SOCK = 1 << 9
_MAKE_FIFO = 1 << 10
_MAKE_BLOCK = 1 << 11
_MAKE_SYM = 1 << 12
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15

_BIND_TCP = 1 << 0
_CONNECT_TCP = 1 << 1
_SCOPE_ABSTRACT_SOCKETS = 1 << 0
_SCOPE_SIGNALS = 1 << 1

LIST = _READ_DIR
READ = _READ_DIR | _READ_FILE | _EXECUTE
# Not device files, which could be the disk itself.
WRITE = (
    READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK
    | _MAKE_FIFO | _MAKE_SYM | _REFER | _TRUNCATE
)  # fmt: skip
DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
SHARED_MEMORY = _READ_DIR | _READ_FILE | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _REFER | _TRUNCATE
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_FILES_BY_VERSION = ((5, (1 << 16) - 1), (3, (1 << 15) - 1), (2, (1 << 14) - 1), (1, (1 << 13) - 1))


class Rule(NamedTuple):
    """The rights on a path and everything below it.

    Attributes:
        path: An absolute path; left out if it does not exist or contains a link.
        access: Such as `READ` or `WRITE`.
    """

    path: str
    access: int


def build(rules: Iterable[Rule], *, tcp: bool, version: int) -> int:
    """A rule set that permits nothing but `rules`, as a descriptor.

    Args:
        rules: What is permitted.
        tcp: Whether TCP connections and listening sockets are permitted.
        version: The version of the interface to use.

    Raises:
        OSError: The system refused.
    """
    files = next(rights for since, rights in _FILES_BY_VERSION if version >= since)
    net = 0 if tcp else _BIND_TCP | _CONNECT_TCP
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS
    attributes = struct.pack("=Q", files)
    if version >= 4:
        attributes += struct.pack("=Q", net)
    if version >= 6:
        attributes += struct.pack("=Q", scopes)
    ruleset = create_ruleset(attributes)
    with on_error(os.close, ruleset):
        for rule in rules:
            _add(ruleset, rule, files)
    return ruleset


def _add(ruleset: int, rule: Rule, files: int) -> None:
    try:
        descriptor = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # Missing or unreachable, so there is nothing to permit.
        return
    try:
        # A command may have put a link to elsewhere in its way.
        if os.readlink(f"/proc/self/fd/{descriptor}") != rule.path:
            return
        access = rule.access & files
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _ON_FILES
        if access:
            add_rule(ruleset, access, descriptor)
    finally:
        os.close(descriptor)


class Spread(NamedTuple):
    """Rules for a folder without some of what is below it.

    Attributes:
        rules: The rules.
        listed: The folders whose entries the rules were made from; new entries have none.
    """

    rules: Sequence[Rule]
    listed: Sequence[str]


def spread(folder: str, access: int, without: Iterable[str]) -> Spread:
    """Rules that permit `access` below a folder, but only listing in the paths `without`.

    Args:
        folder: The folder, links resolved.
        access: What is permitted.
        without: Absolute paths, links resolved; their parent folders can only be listed.
    """
    hidden = {path for path in without if is_below(path, folder)}
    if not hidden or folder in hidden:
        return Spread(() if hidden else (Rule(folder, access),), ())
    rules, listed = [Rule(folder, LIST & access)], [folder]
    # A folder may have a thousand entries, and a hundred paths below it be hidden.
    by_entry: dict[str, set[str]] = {}
    begin = len(folder.rstrip(os.sep)) + 1
    for path in hidden:
        by_entry.setdefault(path[begin:].partition(os.sep)[0], set()).add(path)
    for path, is_folder in _entries(folder):
        below = by_entry.get(path[begin:], set())
        if path in below:
            continue
        if is_folder:
            parts = spread(path, access, below)
            rules += parts.rules
            listed += parts.listed
        else:
            rules.append(Rule(path, access))
    return Spread(rules, listed)


def _entries(folder: str) -> Iterator[tuple[str, bool]]:
    """The entries of a folder except links, which are judged by what they lead to."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    yield entry.path, entry.is_dir(follow_symlinks=False)
    except OSError:
        # Unreadable for us, so for the command as well.
        return


# -- the kernel layer on Linux -----------------------------------------------------------


_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class Places(NamedTuple):
    """The file access of commands, as absolute paths with links resolved.

    Attributes:
        write: Folders they may change.
        read: Folders they may read.
        readable: Folders they may read even below hidden ones.
        hidden: Files and folders they may neither read nor change; their names can be listed.
        are_covered: Whether mounts hide those in folders of `write`. Otherwise nothing can be created
            next to them.
    """

    write: tuple[str, ...]
    read: tuple[str, ...]
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    are_covered: bool = False


class KernelLayer:
    """Makes the rule set once, and again when entries appear next to hidden ones.

    Args:
        places: What commands may do with files.
        internet: Whether they may use the internet.
        asks: Whether the launcher decides which UNIX sockets they connect to: those in folders they
            may change.
        shares: Whether they share memory, semaphores and queues without a path with others.

    Raises:
        OSError: The system does not support it.
    """

    def __init__(self, places: Places, *, internet: bool, asks: bool, shares: bool) -> None:
        self._places = places
        self._internet = internet
        self._version = system_calls.landlock_version()
        architecture = seccomp.architecture()
        if architecture is None:
            raise OSError("no seccomp filter for this machine")
        self._sockets = places.write if asks else None
        self._in_written = [
            path for path in places.hidden if any(is_below(path, folder) for folder in places.write)
        ]
        self._hidden = tuple(self._in_written) if asks else ()
        self._filter = seccomp.build(
            architecture,
            internet=internet,
            truncation=self._version < 3,
            superuser=os.geteuid() == 0,
            asks=asks,
            shares=shares,
        )
        self._listed: tuple[str, ...] = ()
        self._state: tuple[object, ...] | None = None
        self._confinement: Confinement | None = None
        self._former: Confinement | None = None

    def confinement(self) -> Confinement:
        """Return the restrictions of the next command.

        Raises:
            OSError: The system refused to make the rules.
        """
        if self._confinement is None or self._state != self._look():
            # A command that is just being started may still need it.
            self._close(self._former)
            self._former, self._confinement = self._confinement, None
            rules = [*self._rules()]
            self._state = self._look()
            ruleset = build(rules, tcp=self._internet, version=self._version)
            self._confinement = Confinement(ruleset, self._filter, self._sockets, self._hidden)
        return self._confinement

    def close(self) -> None:
        """Close the rule sets; processes they apply to keep them."""
        self._close(self._former)
        self._close(self._confinement)
        self._former = self._confinement = None

    def _close(self, confinement: Confinement | None) -> None:
        if confinement is not None:
            os.close(confinement.rules)

    def _rules(self) -> Iterator[Rule]:
        places = self._places
        # Devices would include what is typed into terminals and, for root, the disks.
        unreadable = {"/dev", *places.hidden}
        unwritable = {"/dev", *filter(os.path.lexists, places.hidden)}
        if places.are_covered:
            unreadable.difference_update(self._in_written)
            unwritable.difference_update(self._in_written)
        listed: list[str] = []
        for folders, access, without in (
            (places.read, READ, unreadable),
            (places.write, WRITE, unwritable),
        ):
            for folder in folders:
                parts = spread(folder, access, without)
                yield from parts.rules
                listed += parts.listed
        self._listed = tuple(dict.fromkeys(listed))
        for folder in places.readable:
            yield Rule(folder, READ)
        yield Rule("/dev", LIST)
        for name in _DEVICES:
            yield Rule(f"/dev/{name}", DEVICE)
        # Semaphores of the C library are files there.
        yield Rule(os.path.realpath("/dev/shm"), SHARED_MEMORY)

    def _look(self) -> tuple[object, ...]:
        """Return the state of the file system that the rules depend on."""
        return (
            *(os.path.lexists(path) for path in self._places.hidden),
            *(_read_state(folder)[:2] for folder in self._places.write),
            *map(_read_state, self._listed),
        )


def _read_state(folder: str) -> tuple[int, ...]:
    try:
        state = os.stat(folder)
    except OSError:
        return ()
    return state.st_dev, state.st_ino, state.st_mtime_ns
