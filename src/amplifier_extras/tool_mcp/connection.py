"""Connections to servers, and their errors.

ServerProblem
├── NotConnected       the server is not connected, the call was not sent
├── CallLost           the call was sent, and whether it ran is unknown
└── ServerRefused      the server answered with an error
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from amplifier_support.named_tuple import NamedTuple

MAX_MESSAGE = 32 * 1024 * 1024
"""Bytes of a message from a server; reading one takes about twice as much memory."""


_MAX_TEXT = 4000


def shorten(text: str) -> str:
    """Shorten text that a server sends with errors or results."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}… ({len(text) - _MAX_TEXT} more characters)"


def error_text(error: BaseException) -> str:
    """The message of an error; of a group, that of its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return shorten(str(error)) or type(error).__name__


class ServerProblem(Exception):
    """The request to the server failed; the message is for the model."""


class NotConnected(ServerProblem):
    """There is no connection, so nothing was sent."""


class CallLost(ServerProblem):
    """No response arrived.

    Attributes:
        connection_ended: Whether the connection ended before it.
    """

    def __init__(self, message: str, *, connection_ended: bool = False) -> None:
        super().__init__(message)
        self.connection_ended = connection_ended


class ServerRefused(ServerProblem):
    """The server answered with an error."""


class SessionGone(Exception):
    """The server no longer knows the session and did not look at the call."""


class CannotStart(Exception):
    """The server cannot start, however often it is tried."""


class Offers(NamedTuple):
    """The tools, resources and prompts of a server.

    Attributes:
        tools: Its tools, as the SDK gives them.
        has_resources: Whether it has resources.
        has_prompts: Whether it has prompts.
        has_skills: Whether it offers skills.
        reads_directories: Whether it lists the resources in a directory.
        skills: Its skills, as `skills.ServedSkill`.
        problems: What cannot be used, and the reason.
    """

    tools: list[Any]
    has_resources: bool
    has_prompts: bool
    has_skills: bool
    reads_directories: bool
    skills: Sequence[Any] = ()
    problems: Sequence[str] = ()


async def read_pages(list_page: Callable[..., Awaitable[Any]], most: int) -> AsyncIterator[Any]:
    """Yield the pages of a list that a server gives in pages, at most so many."""
    cursor: str | None = None
    for _ in range(most):
        page = await list_page(cursor=cursor)
        yield page
        cursor = page.next_cursor
        if not cursor:
            return


class Program(NamedTuple):
    """The program to start.

    Attributes:
        argv: Absolute path of the program, and its arguments.
        environment: Its complete environment.
        folder: Its working directory.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str


class Connection(NamedTuple):
    """The settings of one connection.

    Attributes:
        transport: The transport for the SDK's client.
        problem: Why it ended, if the transport knows.
        close: Always called afterwards.
        needs_user: Returns True if another attempt is useless until the user does something.
    """

    transport: Any
    problem: Callable[[], str | None]
    close: Callable[[], Awaitable[None]]
    needs_user: Callable[[], bool] = bool


Way = Callable[[Callable[[], None]], Awaitable[Connection]]
"""Prepare a connection; the argument is called when the connection ends by itself."""
