"""One server: connected for as long as the session runs, and reconnected when lost.

A separate task holds the connection, because the SDK's contexts must be left by the task that
entered them; calls come from any task. A call is sent once. Only a call that a server rejected
unseen, because it no longer knows the session, is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from amplifier_extras.tool_mcp.config import ServerConfig

if TYPE_CHECKING:
    from amplifier_extras.tool_mcp.client import ServerClient, SkillsClient
from amplifier_extras.tool_mcp.connection import (
    CallLost,
    CannotStart,
    NotConnected,
    Offers,
    ServerProblem,
    SessionGone,
    Way,
    error_text,
)
from amplifier_support.redaction import Redactor

ResultT = TypeVar("ResultT")

FIRST_PAUSE = 1.0
"""Seconds between the first failure and the next attempt; doubles each time."""

_MAX_PAUSE = 30.0
_SHORTEST_SECRET = 8
_MAX_ATTEMPTS = 5
_RELIST_PAUSE = 1.0
_LEAVE_SECONDS = 3.0
_LAST_ANSWERS_SECONDS = 2.0


class Listener:
    """Notified of a server's events; does nothing by default."""

    async def connected(self, server: Server, offers: Offers, seconds: float) -> None: ...
    async def disconnected(self, server: Server, problem: str) -> None: ...
    async def failed(self, server: Server, problem: str, final: bool) -> None: ...
    async def asked(self, server: Server, params: Any) -> Any: ...
    async def unanswered(self, tool: str, question: str) -> None: ...
    async def logged(self, server: Server, level: str, name: str | None, data: Any) -> None: ...


class Server:
    """A configured server.

    Args:
        name: Its name in the config.
        config: Its settings.
        connect: Prepares a connection.
        listener: Notified of events.
        secrets: Returns what must not be shown, such as tokens for the server.

    Attributes:
        tried: Set once the first attempt has succeeded or failed.
        settled: Set once connected for the first time, or given up.
        problem: Why it is not connected.
        is_awaited: Whether someone waits until it is settled; it then has two attempts, one for each kind of session.
        unanswered: What it has asked the user in vain.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        connect: Way,
        listener: Listener,
        secrets: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.name = name
        self.config = config
        self.tried = asyncio.Event()
        self.settled = asyncio.Event()
        self.problem = "not started yet"
        self.is_awaited = config.required
        self._connect = connect
        self._listener = listener
        self._secrets = secrets
        self._client: ServerClient | None = None
        self._why_lost: Callable[[], str | None] = lambda: None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._attempted = asyncio.Event()
        self._ready_since: float | None = None
        self._in_flight: set[asyncio.Timeout] = set()
        self.unanswered: list[str] = []
        self._idle = asyncio.Event()
        self._has_changed = False
        self._relisting: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def redact(self, text: str) -> str:
        """Return a text of the server without the tokens that it has got."""
        secrets = [secret for secret in self._secrets() if len(secret) >= _SHORTEST_SECRET]
        return Redactor(secrets, ()).text(text) if secrets else text

    def start(self) -> None:
        """Connect, and stay connected until `close`."""
        self._task = asyncio.create_task(self._stay_connected())
        # However the task ends, no caller may wait for an event it would have set.
        self._task.add_done_callback(lambda _: self.tried.set())
        self._task.add_done_callback(lambda _: self.settled.set())

    async def close(self) -> None:
        """Close the connection, and stop the server if it is our process."""
        self._closing.set()
        if self._task is None:
            return
        if not self._ready.is_set():
            self._task.cancel()  # A connection being made is not needed any more.
        if self._relisting is not None:
            self._relisting.cancel()
        done, _ = await asyncio.wait([self._task], timeout=_LEAVE_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_LEAVE_SECONDS)

    async def call(self, use: Callable[[SkillsClient], Awaitable[ResultT]]) -> ResultT:
        """Run `use` with the connected client and return its result.

        Raises:
            ServerProblem: There is no connection, no response, or an error response.
        """
        client = await self._connected_client()
        try:
            return await self._call_with_limit(client, use)
        except SessionGone:
            # The server was restarted and rejected the call unseen.
            client = await self._connected_client(not_this=client)
        try:
            return await self._call_with_limit(client, use)
        except SessionGone as error:
            raise NotConnected(f"the server {self.name} does not keep its session") from error

    async def report_unanswered(self, tool: str, start: int) -> None:
        """Report the questions that were asked in vain during a call, those from `start` on."""
        for question in self.unanswered[start:]:
            await self._listener.unanswered(tool, question)

    # -- calls -------------------------------------------------------------------------

    async def _connected_client(self, not_this: ServerClient | None = None) -> ServerClient:
        if not_this is not None and self._client is not_this:
            self._drop()
        if self._client is None:
            self._wanted.set()
            # Until it is connected, or one more attempt has failed.
            self._attempted.clear()
            limit = self.config.start_timeout
            await _wait_for_first(self._ready, self._attempted, seconds=limit)
        if self._client is None:
            raise NotConnected(f"the server {self.name} is not connected: {self.problem}")
        return self._client

    async def _call_with_limit(
        self, client: ServerClient, use: Callable[[SkillsClient], Awaitable[ResultT]]
    ) -> ResultT:
        limit = asyncio.timeout(self.config.timeout)
        self._in_flight.add(limit)
        self._idle.clear()
        try:
            async with limit:
                return await client.answer(use)
        except TimeoutError as error:
            raise CallLost(
                f"the server {self.name} did not answer within the time limit of "
                f"{self.config.timeout:g} s; whether the call took effect is unknown"
            ) from error
        except CallLost as error:
            if not error.connection_ended or self._client is not client:
                raise
            self._drop()
            if (why := self._why_lost()) is not None:
                raise CallLost(f"{error}; the reason: {why}", connection_ended=True) from error
            raise
        finally:
            self._in_flight.discard(limit)
            if not self._in_flight:
                self._idle.set()

    def _drop(self) -> None:
        self._client = None
        self._ready.clear()
        self._lost.set()

    # -- the connection ----------------------------------------------------------------

    async def _stay_connected(self) -> None:
        failures = 0
        while not self._closing.is_set():
            self._lost.clear()
            self._wanted.clear()
            self._ready_since = None
            final = False
            try:
                await self._one_connection(failures)
            except CannotStart as error:
                self.problem, final = str(error), True
            # The SDK and the server are external; the session continues without them.
            except Exception as error:
                self.problem = self.redact(error_text(error))
            self._client = None
            self._ready.clear()
            if self._closing.is_set():
                return
            since = self._ready_since
            # A connection lost right after it was made does not count.
            lasted = since is not None and time.monotonic() - since > FIRST_PAUSE
            failures = 0 if lasted else failures
            failures += 1
            most = 2 if self.is_awaited and not self.settled.is_set() else _MAX_ATTEMPTS
            final = final or failures >= most
            if since is not None:
                await self._listener.disconnected(self, self.problem)
            else:
                await self._listener.failed(self, self.problem, final)
                self._attempted.set()
            self.tried.set()
            await self._pause(failures, final)
            failures = 0 if final else failures

    async def _pause(self, failures: int, final: bool) -> None:
        """Wait before the next attempt; after the last one, until a call needs it."""
        if final:
            self.settled.set()
        pause = None if final else min(FIRST_PAUSE * 2 ** (failures - 1), _MAX_PAUSE)
        await _wait_for_first(self._closing, self._wanted, seconds=pause)

    async def _one_connection(self, failures: int) -> None:
        """Connect and wait for the end; sets `problem` to its reason, unless it raises."""
        connection = await self._connect(self._lost.set)
        self._why_lost = connection.problem
        from amplifier_extras.tool_mcp.client import ServerClient

        started = time.monotonic()
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(self.config.start_timeout):
                        client = await stack.enter_async_context(
                            ServerClient(
                                self.name,
                                connection.transport,
                                legacy=bool(failures % 2),
                                on_log=partial(self._listener.logged, self),
                                on_question=self._ask,
                                on_tools_changed=self._on_tools_changed,
                            )
                        )
                        try:
                            offers = await client.offers()
                        # A server may offer anything. A program that has ended by itself is reported by the caller.
                        except Exception as error:
                            if connection.problem() is None:
                                text = " ".join(error_text(error).split())
                                raise _NotReady(f"cannot list its tools: {text}") from error
                            raise
                except TimeoutError as error:
                    limit = f"{self.config.start_timeout:g} s"
                    raise _NotReady(f"not ready within {limit}") from error
                self._client, self.problem = client, ""
                await self._listener.connected(self, offers, time.monotonic() - started)
                self._ready_since = time.monotonic()
                self._ready.set()
                self.tried.set()
                self.settled.set()
                await _wait_for_first(self._closing, self._lost)
                if self._in_flight:
                    # Other calls may still get a response, if only the same rejection.
                    await _wait_for_first(self._closing, self._idle, seconds=_LAST_ANSWERS_SECONDS)
        except Exception as error:
            # If a process has ended, that says more than the SDK's error.
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            if (problem := connection.problem()) is not None and not isinstance(first, _NotReady):
                raise (CannotStart if connection.needs_user() else _Ended)(problem) from error
            raise
        finally:
            await connection.close()
        self.problem = connection.problem() or "the connection was lost"

    async def _ask(self, params: Any) -> Any:
        """Ask the user; the time does not count for the calls in progress."""
        loop = asyncio.get_running_loop()
        began, limits = loop.time(), {each: each.when() for each in self._in_flight}
        for limit in limits:
            limit.reschedule(None)
        try:
            return await self._listener.asked(self, params)
        finally:
            for limit, end in limits.items():
                if limit in self._in_flight and end is not None:
                    limit.reschedule(end + loop.time() - began)

    # -- notifications -----------------------------------------------------------------

    def _on_tools_changed(self) -> None:
        if self._client is not None:
            self._has_changed = True
            # A request from here would wait for a response that is read only after this.
            if self._relisting is None or self._relisting.done():
                self._relisting = asyncio.create_task(self._relist(self._client))

    async def _relist(self, client: ServerClient) -> None:
        # As in `call`: on failure the tools stay as they are.
        with contextlib.suppress(ServerProblem, SessionGone):
            while self._has_changed:
                self._has_changed = False
                offers = await self._call_with_limit(client, lambda _: client.offers())
                await self._listener.connected(self, offers, 0.0)
                # Limit how often the tools are listed.
                await asyncio.sleep(_RELIST_PAUSE)


class _NotReady(Exception):
    """The connection was not ready in time."""


class _Ended(Exception):
    """The server has ended."""


async def _wait_for_first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
