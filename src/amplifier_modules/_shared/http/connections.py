"""Clients for an address, and HTTP/1.1 over asyncio as a transport of httpx.

The transport that comes with httpx uses asyncio through anyio, whose import costs a short run more
than its request, and it returns each chunk of a body separately. This one also uses h11, but returns
chunks that arrived together as one. Proxies are left to httpx's own transport.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

import h11

from amplifier_modules._shared.http.environment import (
    certificates_of_environment,
    is_usable,
    proxy_for,
)
from amplifier_modules._shared.http.lean_httpx import httpx
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import without_login

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_MAX_SIZE = 18
_END = b"\r\n"


class ChunkMerger:
    """Rewrites a body as it arrives: complete chunks next to each other become one.

    A model's service sends each word as a chunk of its own. h11 makes an event of every chunk, which
    costs more than reading the JSON inside.

    Everything else is passed on unchanged: the last chunk with its trailers, chunk extensions, and
    what is not valid. h11 checks it and reports what is wrong.
    """

    def __init__(self) -> None:
        self._left = 0  # bytes of an incomplete chunk that are still to come
        self._held = b""  # the beginning of a size
        self._is_done = False

    @property
    def is_between_bytes(self) -> bool:
        """True if everything received has been passed on."""
        return not self._held

    def feed(self, data: bytes) -> bytes:
        """Return what to read instead of the bytes that arrived."""
        if self._is_done:
            return data
        data = self._held + data
        self._held = b""
        begin = at = min(self._left, len(data))
        self._left -= at
        merged: list[bytes] = []
        while at < len(data):
            size = _SIZE.match(data, at)
            if size is None:
                if len(data) - at < _MAX_SIZE and b"\n" not in data[at:]:
                    self._held = data[at:]
                    data = data[:at]
                else:
                    self._is_done = True
                break
            start = size.end()
            end = start + int(size[1], 16)
            if end == start:
                self._is_done = True
                break
            if end + 2 > len(data):
                self._left = end + 2 - len(data)
                break
            if data[end : end + 2] != _END:
                self._is_done = True
                break
            merged.append(data[start:end])
            at = end + 2
        if len(merged) < 2:
            return data
        body = b"".join(merged)
        return b"%b%x\r\n%b\r\n%b" % (data[:begin], len(body), body, data[at:])


_READ_AHEAD = 256 * 1024
"""Limit of bytes buffered from the network before they are read."""

_HEAD_LIMIT = 100 * 1024
"""Size limit of the header of an answer or of a chunk, in bytes."""

_MAX_INTERIM = 20
"""Answers of the kind 1xx that may precede one."""

_NEXT_ADDRESS = 0.25
"""Seconds until a host's next address is tried in parallel with one that has not answered."""


class Origin(NamedTuple):
    """The origin that a kept connection belongs to."""

    scheme: str
    host: str
    port: int


Addresses = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and port to IP addresses, as text."""


class AsyncioTransport(httpx.AsyncBaseTransport):
    """Connects without proxies, and keeps connections for further requests.

    Args:
        tls: Gives the context for https, when it is first needed.
        keep: Seconds that an unused connection is kept.
        addresses: Resolves a host name. Connections are made only to the addresses it returns;
            certificates are checked for the name. Default: the system's resolver.
    """

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext],
        keep: float,
        addresses: Addresses | None = None,
    ) -> None:
        self._tls = tls
        self._keep = keep
        self._addresses = addresses
        self._kept: dict[Origin, list[_Connection]] = {}
        self._is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request and returns with the answer's head.

        Raises:
            httpx.TransportError: As httpx's own transport does.
        """
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        origin = _to_origin(request.url)
        connection = await self._take(origin)
        if connection is None:
            connection = await self._connect(origin, limits.get("connect"))
        try:
            await connection.send(request, limits.get("write"))
            head = await connection.head(limits.get("read"))
        except BaseException:
            connection.abort()
            raise
        return httpx.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_Body(connection, limits.get("read"), lambda: self._release(origin, connection)),
            extensions={
                "http_version": b"HTTP/" + head.http_version,
                "reason_phrase": bytes(head.reason),
            },
        )

    async def aclose(self) -> None:
        """Closes the connections that are not in use; the others close after their answer."""
        self._is_closed = True
        for connections in self._kept.values():
            for connection in connections:
                connection.abort()
        self._kept.clear()
        await asyncio.sleep(0)  # asyncio closes the sockets in its next round

    async def _take(self, origin: Origin) -> _Connection | None:
        kept = self._kept.get(origin, [])
        if kept:
            # Two rounds: in the first asyncio notices a closed connection, in the second it reports it.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        while kept:
            connection = kept.pop()
            if connection.is_usable(self._keep):
                return connection
            connection.abort()
        return None

    def _release(self, origin: Origin, connection: _Connection) -> None:
        if not self._is_closed and connection.start_next_cycle():
            self._kept.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    async def _connect(self, origin: Origin, patience: float | None) -> _Connection:
        options: dict[str, Any] = {}
        if origin.scheme == "https":
            options = {"ssl": self._tls(), "server_hostname": origin.host}
        try:
            async with asyncio.timeout(patience):
                if self._addresses is None:
                    return await _open_connection(origin.host, origin.port, options)
                addresses = await self._addresses(origin.host, origin.port)
                # Limit each attempt so that an address that does not answer leaves time for the others.
                share = None if patience is None else patience / max(len(addresses), 1)
                return await _first_connected(addresses, origin.port, share, options)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error


async def _open_connection(host: str, port: int, options: dict[str, Any]) -> _Connection:
    _, connection = await asyncio.get_running_loop().create_connection(
        _Connection, host, port, happy_eyeballs_delay=_NEXT_ADDRESS, **options
    )
    return connection


async def _first_connected(
    addresses: Sequence[str], port: int, share: float | None, options: dict[str, Any]
) -> _Connection:
    """A connection to the first address that accepts one, each tried for `share` seconds."""
    failed: OSError = OSError("the name has no address")
    for address in addresses:
        literal = str(ip_address(address))  # anything else would be resolved again
        try:
            async with asyncio.timeout(share):
                return await _open_connection(literal, port, options)
        except OSError as error:
            failed = error
    raise failed


class _Connection(asyncio.Protocol):
    """One connection, used for one exchange after another."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
        self._chunks: ChunkMerger | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._error: Exception | None = None
        self._ahead = 0
        self._arrival: asyncio.Future[None] | None = None
        self._unsent: asyncio.Future[None] | None = None
        self._body_has_ended = False
        self._unused_since = 0.0

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(0)  # `send` waits until everything is on its way

    def data_received(self, data: bytes) -> None:
        self._ahead += len(data)
        if self._chunks is not None:
            data = self._chunks.feed(data)
        # Nothing at all would mean the end of the connection.
        if data:
            self._http.receive_data(data)
        if self._ahead > _READ_AHEAD:
            self._transport.pause_reading()
        _wake(self._arrival)

    def eof_received(self) -> None:
        self._http.receive_data(b"")
        _wake(self._arrival)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._http.receive_data(b"")
        self._error = exc
        _wake(self._arrival)
        _wake(self._unsent)

    def pause_writing(self) -> None:
        self._unsent = self._loop.create_future()

    def resume_writing(self) -> None:
        _wake(self._unsent)
        self._unsent = None

    # One exchange

    async def send(self, request: httpx.Request, patience: float | None) -> None:
        """Sends the request, body and all, in `patience` seconds."""
        assert isinstance(request.stream, httpx.AsyncByteStream)
        try:
            head = h11.Request(
                method=request.method, target=request.url.raw_path, headers=request.headers.raw
            )
            data = [self._http.send(head)]
            data += [self._http.send(h11.Data(part)) async for part in request.stream]
            data.append(self._http.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        self._transport.write(b"".join(data))
        if self._unsent is not None:
            try:
                async with asyncio.timeout(patience):
                    await self._unsent
            except TimeoutError as error:
                raise httpx.WriteTimeout(str(error)) from error
        # A service may reject a request before it has read all of it. Whether the connection was
        # lost without an answer, the reader will see.

    async def head(self, patience: float | None) -> h11.Response:
        """The answer's header, which has to be complete in `patience` seconds."""
        self._body_has_ended = False
        interim = 0
        try:
            async with asyncio.timeout(patience):
                while not isinstance(event := await self._event(None), h11.Response):
                    interim += 1
                    if interim > _MAX_INTERIM:
                        raise httpx.RemoteProtocolError("too many interim answers")
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        if (b"transfer-encoding", b"chunked") in event.headers:
            chunks = ChunkMerger()
            chunks.feed(self._http.trailing_data[0])
            self._chunks = chunks if chunks.is_between_bytes else None
        return event

    async def body(self, patience: float | None) -> bytes:
        """The next part of the body, waiting for one if necessary; empty at its end."""
        parts: list[bytes] = []
        while not self._body_has_ended:
            event = self._next_event() if parts else await self._event(patience)
            if isinstance(event, h11.Data):
                parts.append(event.data)
            elif event is h11.NEED_DATA:
                break
            else:
                self._body_has_ended = True
                self._chunks = None
        return b"".join(parts)

    def start_next_cycle(self) -> bool:
        """Prepare for the next exchange, if this one is over and the service keeps the connection."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._unused_since = self._loop.time()
        return True

    def is_usable(self, keep: float) -> bool:
        """Return True if it is open, has received nothing since, and was unused for at most `keep` seconds."""
        silent = self._error is None and self._http.trailing_data == (b"", False)
        return silent and self._loop.time() - self._unused_since <= keep

    def abort(self) -> None:
        self._transport.abort()

    async def _event(self, patience: float | None) -> Any:
        while (event := self._next_event()) is h11.NEED_DATA:
            await self._wait_for_data(patience)
        return event

    def _next_event(self) -> Any:
        is_head = self._http.their_state is h11.SEND_RESPONSE
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            reason = str(error)
            if self._http.trailing_data == (b"", True):
                reason = "no answer came" if is_head else "the connection was closed"
            raise httpx.RemoteProtocolError(reason) from error

    async def _wait_for_data(self, patience: float | None) -> None:
        if self._error is not None:
            raise httpx.ReadError(str(self._error)) from self._error
        self._ahead = 0
        self._transport.resume_reading()
        self._arrival = self._loop.create_future()
        try:
            async with asyncio.timeout(patience):
                await self._arrival
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error


class _Body(httpx.AsyncByteStream):
    def __init__(
        self, connection: _Connection, patience: float | None, release: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._patience = patience
        self._release: Callable[[], None] | None = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._connection.body(self._patience):
            yield data

    async def aclose(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def _to_origin(url: httpx.URL) -> Origin:
    if url.scheme not in ("http", "https"):
        raise httpx.UnsupportedProtocol(f"unsupported URL scheme {url.scheme}://")
    port = url.port or (443 if url.scheme == "https" else 80)
    return Origin(url.scheme, url.raw_host.decode("ascii"), port)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


_KEEPALIVE_SECONDS = 60.0


def open_client(
    url: str, headers: Mapping[str, str], *, connect: float, idle: float
) -> httpx.AsyncClient:
    """A client for one address; it does not follow redirects.

    Args:
        url: The address.
        headers: Sent with every request.
        connect: Seconds to reach it.
        idle: Longest silence, in seconds.

    Raises:
        UnusableProxy: The proxy of the environment for this address cannot be used.
    """
    timeout = httpx.Timeout(idle, connect=connect)
    proxy = usable_proxy(url)
    if proxy is None:
        transport = AsyncioTransport(trusted_context, _KEEPALIVE_SECONDS)
        return httpx.AsyncClient(headers=headers, timeout=timeout, transport=transport)
    try:
        return httpx.AsyncClient(
            headers=headers,
            timeout=timeout,
            verify=trusted_context(),
            limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS),
            proxy=proxy,
            # Proxies for other addresses are not used, so they need not be valid.
            trust_env=False,
        )
    except ImportError as error:
        reason = "SOCKS needs the package socksio, which is not installed"
        raise UnusableProxy(proxy, reason) from error


def usable_proxy(url: str) -> str | None:
    """The proxy of the environment for an address; None if there is none.

    Raises:
        UnusableProxy: It cannot be used.
    """
    proxy = proxy_for(url)
    if proxy is not None and not is_usable(proxy):
        raise UnusableProxy(proxy, "it is not the address of a proxy")
    return proxy


class UnusableProxy(Exception):
    """A proxy of the environment cannot be used."""

    def __init__(self, proxy: str, reason: str) -> None:
        super().__init__(
            f"the proxy {without_login(proxy)} that the environment names cannot be used: {reason}; "
            "set HTTPS_PROXY to the address of an HTTP proxy"
        )


def trusted_context() -> ssl.SSLContext:
    """The TLS context: httpx's default, or one with the certificate files of the environment."""
    return _context_with(certificates_of_environment())


@lru_cache(maxsize=1)
def _context_with(_certificates: tuple[str | None, ...]) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
