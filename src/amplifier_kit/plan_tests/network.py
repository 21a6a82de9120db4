"""Block network access of this process while a test runs."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


class NetworkForbidden(OSError):
    """A test tried to use the network."""


class Attempt(NamedTuple):
    """A blocked attempt to use the network.

    Attributes:
        what: The name that was to be looked up, or `a socket`.
        who: The tool that was running; empty if none was.
    """

    what: str
    who: str


class Attempts:
    """The blocked attempts to use the network.

    Args:
        who: Names the tool that is running.

    Attributes:
        made: All attempts.
    """

    def __init__(self, who: Callable[[], str] = lambda: "") -> None:
        self._who = who
        self.seen: list[Attempt] = []

    def refuse(self, what: str) -> None:
        """
        Raises:
            NetworkForbidden: Always.
        """
        self.seen.append(Attempt(what, self._who()))
        raise NetworkForbidden("the network is closed in tests of plans")


class _Watch:
    """The audit hook, which cannot be removed again."""

    def __init__(self) -> None:
        self.is_installed = False
        self.attempts: Attempts | None = None

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        attempts = self.attempts
        if attempts is None or not event.startswith("socket."):
            return
        if event in _LOOKUPS:
            attempts.refuse(str(arguments[0]))
        elif event == "socket.__new__" and arguments[1] in _INTERNET:
            attempts.refuse("a socket")


_watch = _Watch()


@contextmanager
def no_network(who: Callable[[], str] = lambda: "") -> Generator[Attempts]:
    """Refuse internet sockets and name lookups of this process, in all of its threads.

    Args:
        who: Names the tool that is running.
    """
    if not _watch.is_installed:
        sys.addaudithook(_watch.see)
        _watch.is_installed = True
    before, attempts = _watch.attempts, Attempts(who)
    _watch.attempts = attempts
    try:
        yield attempts
    finally:
        _watch.attempts = before
