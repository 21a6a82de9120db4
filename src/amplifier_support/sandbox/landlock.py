"""Landlock: which files a process may read and change, as a rule set of the Linux kernel.

Landlock only ever allows: a rule for a folder applies to everything below it. A folder is kept out
by rules for its siblings instead of its parent.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence

from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox.system_calls import add_rule, create_ruleset

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
    try:
        for rule in rules:
            _add(ruleset, rule, files)
    except BaseException:
        os.close(ruleset)
        raise
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
    rules: list[Rule] = []
    listed: list[str] = []
    hidden = {path for path in without if is_below(path, folder)}
    if folder in hidden:
        return Spread((), ())
    if not hidden:
        return Spread((Rule(folder, access),), ())
    rules.append(Rule(folder, LIST & access))
    listed.append(folder)
    for path, is_folder in _entries(folder):
        if path in hidden:
            continue
        if is_folder:
            below = spread(path, access, hidden)
            rules += below.rules
            listed += below.listed
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
