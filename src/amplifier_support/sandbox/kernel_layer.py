"""The kernel layer on Linux: a Landlock rule set and a seccomp filter for one policy."""

from __future__ import annotations

import os
from collections.abc import Iterator

from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox import landlock, seccomp, system_calls
from amplifier_support.sandbox.confinement import Confinement
from amplifier_support.sandbox.landlock import Rule, spread

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
            path for path in places.hidden if any(is_below(path, one) for one in places.write)
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
            ruleset = landlock.build(rules, tcp=self._internet, version=self._version)
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
            (places.read, landlock.READ, unreadable),
            (places.write, landlock.WRITE, unwritable),
        ):
            for folder in folders:
                parts = spread(folder, access, without)
                yield from parts.rules
                listed += parts.listed
        self._listed = tuple(dict.fromkeys(listed))
        for folder in places.readable:
            yield Rule(folder, landlock.READ)
        yield Rule("/dev", landlock.LIST)
        for name in _DEVICES:
            yield Rule(f"/dev/{name}", landlock.DEVICE)
        # Semaphores of the C library are files there.
        yield Rule(os.path.realpath("/dev/shm"), landlock.SHARED_MEMORY)

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
