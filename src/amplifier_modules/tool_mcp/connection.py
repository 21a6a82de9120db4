"""What a connection to a server is, and what can go wrong with it.

ServerProblem
├── NotConnected       the server is not there, the call was not sent
├── CallLost           the call was sent, and whether it ran nobody knows
└── ServerRefused      the server answered with an error
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

_LONGEST_TEXT = 4000


def shortened(text: str) -> str:
    """What a server says of a failure, or beside its results: not at any length."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}… ({len(text) - _LONGEST_TEXT} more characters)"


class ServerProblem(Exception):
    """A server cannot be used as asked; the message is for the model."""


class NotConnected(ServerProblem):
    """There is no connection, so nothing was sent."""


class CallLost(ServerProblem):
    """No answer came."""


class ServerRefused(ServerProblem):
    """The server answered with an error."""


class CannotStart(Exception):
    """The server will not start however often it is tried."""


class Offers(NamedTuple):
    """What a server has.

    Attributes:
        tools: Its tools, as the SDK gives them.
        has_resources: Whether it has resources.
        has_prompts: Whether it has prompts.
    """

    tools: list[Any]
    has_resources: bool
    has_prompts: bool


class Connection(NamedTuple):
    """How one connection is made.

    Attributes:
        transport: What the SDK's client takes.
        problem: Why it ended, if the transport knows.
        close: Called afterwards, whatever happened.
    """

    transport: Any
    problem: Callable[[], str | None]
    close: Callable[[], Awaitable[None]]


Way = Callable[[Callable[[], None]], Awaitable[Connection]]
"""Prepares a connection; what it is given is to be called when the connection ends by itself."""
