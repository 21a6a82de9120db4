"""Connections to servers, and their errors.

ServerProblem
├── NotConnected       the server is not connected, the call was not sent
├── CallLost           the call was sent, and whether it ran is unknown
└── ServerRefused      the server answered with an error
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

_LONGEST_TEXT = 4000


def shortened(text: str) -> str:
    """Shorten text that a server sends with errors or results."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}… ({len(text) - _LONGEST_TEXT} more characters)"


class ServerProblem(Exception):
    """The request to the server failed; the message is for the model."""


class NotConnected(ServerProblem):
    """There is no connection, so nothing was sent."""


class CallLost(ServerProblem):
    """No response arrived."""


class ServerRefused(ServerProblem):
    """The server answered with an error."""


class CannotStart(Exception):
    """The server cannot start, however often it is tried."""


class Offers(NamedTuple):
    """What a server offers.

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
        transport: The transport for the SDK's client.
        problem: Why it ended, if the transport knows.
        close: Always called afterwards.
    """

    transport: Any
    problem: Callable[[], str | None]
    close: Callable[[], Awaitable[None]]


Way = Callable[[Callable[[], None]], Awaitable[Connection]]
"""Prepare a connection; the argument is called when the connection ends by itself."""
