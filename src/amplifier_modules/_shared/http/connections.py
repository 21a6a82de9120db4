"""Clients for an address: HTTP/1.1 over asyncio, and the proxies and certificates of the environment.

Importing httpx costs a short run more than its request, and httpx returns each chunk of a body
separately. The client here also uses h11, but returns chunks that arrived together as one. Proxies
and unusual URLs are left to httpx, which is imported for them and for its exceptions.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import h11

from amplifier_core.llm_errors import ConfigurationError
from amplifier_support.files import on_error
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import without_login

if TYPE_CHECKING:
    import httpx

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
        # Heads of chunks repeat, and looking one up is a fifth of a match.
        sizes: dict[bytes, int] = {}
        width = 0
        while at < len(data):
            size = sizes.get(data[at : at + width])
            if size is None:
                head = _SIZE.match(data, at)
                if head is None:
                    if len(data) - at < _MAX_SIZE and b"\n" not in data[at:]:
                        self._held = data[at:]
                        data = data[:at]
                    else:
                        self._is_done = True
                    break
                width = head.end() - at
                size = sizes[head[0]] = int(head[1], 16)
            start = at + width
            end = start + size
            if end == start:
                self._is_done = True
                break
            if end + 2 > len(data):
                self._left = end + 2 - len(data)
                break
            if not data.startswith(_END, end):
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

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """The origin that a kept connection belongs to."""

    scheme: str
    host: str
    port: int


Addresses = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and port to IP addresses, as text."""


class Answer:
    """The answer to one request, of which the body is still to be read, with the names of httpx's.

    Attributes:
        head: The answer's head as h11 has read it.
        headers: Its headers by name in lower case.
    """

    def __init__(
        self,
        head: h11.Response,
        connection: _Connection,
        patience: float | None,
        release: Callable[[], None],
    ) -> None:
        self.head = head
        self.status_code = head.status_code
        self.headers: dict[str, str] = {}
        for raw, content in head.headers:
            name, value = raw.decode("ascii"), content.decode(errors="replace")
            before = self.headers.get(name)
            self.headers[name] = value if before is None else f"{before}, {value}"
        self._connection = connection
        self._patience = patience
        self._release: Callable[[], None] | None = release

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives, as it was sent."""
        while data := await self._connection.body(self._patience):
            yield data
        await self.aclose()

    aiter_raw = aiter_bytes

    async def aclose(self) -> None:
        """Close the connection, unless the body was read to its end."""
        release, self._release = self._release, None
        if release is not None:
            release()


class AsyncioTransport:
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

    async def handle_async_request(self, request: httpx.Request) -> Answer:
        """Send a request of httpx, which is in memory, and return with the answer's head.

        Raises:
            httpx.TransportError: As httpx's own transport does.
        """
        url = request.url
        if url.scheme not in _PORTS:
            raise _httpx_error("UnsupportedProtocol", f"unsupported URL scheme {url.scheme}://")
        origin = Origin(url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
        return await self.exchange(
            origin,
            {"method": request.method, "target": url.raw_path, "headers": request.headers.raw},
            request.content,
            request.extensions.get("timeout", {}),
        )

    async def exchange(
        self,
        origin: Origin,
        head: Mapping[str, Any],
        content: bytes,
        limits: Mapping[str, float | None],
    ) -> Answer:
        """Send a request and return with the answer's head; arguments and errors are httpx's.

        Args:
            head: The method, target and headers for h11.
            limits: Seconds to connect, write and read.
        """
        connection = await self._take(origin)
        if connection is None:
            connection = await self._connect(origin, limits.get("connect"))
        with on_error(connection.abort):
            await connection.send(head, content, limits.get("write"))
            answer = await connection.head(limits.get("read"))
        release = partial(self._release, origin, connection)
        return Answer(answer, connection, limits.get("read"), release)

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
            raise _httpx_error("ConnectTimeout", error) from error
        except OSError as error:
            raise _httpx_error("ConnectError", error) from error


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

    async def send(self, head: Mapping[str, Any], content: bytes, patience: float | None) -> None:
        """Sends the request, body and all, in `patience` seconds."""
        try:
            events = (h11.Request(**head), h11.Data(content), h11.EndOfMessage())
            data = [self._http.send(event) for event in events]
        except h11.LocalProtocolError as error:
            raise _httpx_error("LocalProtocolError", error) from error
        self._transport.write(b"".join(data))
        if self._unsent is not None:
            try:
                async with asyncio.timeout(patience):
                    await self._unsent
            except TimeoutError as error:
                raise _httpx_error("WriteTimeout", error) from error
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
                        raise _httpx_error("RemoteProtocolError", "too many interim answers")
        except TimeoutError as error:
            raise _httpx_error("ReadTimeout", error) from error
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
            raise _httpx_error("RemoteProtocolError", reason) from error

    async def _wait_for_data(self, patience: float | None) -> None:
        if self._error is not None:
            raise _httpx_error("ReadError", self._error) from self._error
        self._ahead = 0
        self._transport.resume_reading()
        self._arrival = self._loop.create_future()
        try:
            async with asyncio.timeout(patience):
                await self._arrival
        except TimeoutError as error:
            raise _httpx_error("ReadTimeout", error) from error


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _httpx_error(name: str, reason: object) -> Exception:
    import httpx

    return getattr(httpx, name)(str(reason))


_KEEPALIVE_SECONDS = 60.0
_PROXIES = ("http", "https", "socks5", "socks5h")
_PLAIN_NETLOC = re.compile(r"([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::([1-9]\d{0,3}|[1-5]\d{4}))?")
_SENT_AS_IS = "/:?&=%@+,;!$'()*"


class Client:
    """Requests to a URL that has one reading only; it follows no redirects and keeps no cookies."""

    def __init__(
        self, origin: Origin, path: str, headers: Mapping[str, str], limits: Mapping[str, float]
    ) -> None:
        self._origin = origin
        self._path = path
        self._headers = headers
        self._limits = limits
        self._transport = AsyncioTransport(trusted_context, _KEEPALIVE_SECONDS)
        self.aclose = self._transport.aclose

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
    ) -> Answer:
        """Send a request and return with the answer's head.

        Raises:
            httpx.TransportError: As httpx does.
        """
        query = f"?{urlencode(params)}" if params else ""
        target = quote(self._path + path, safe=_SENT_AS_IS) + query
        sent = {name.lower(): value for name, value in {**self._headers, **(headers or {})}.items()}
        if content:
            sent["content-length"] = str(len(content))
        head = {"method": method, "target": target, "headers": list(sent.items())}
        return await self._transport.exchange(self._origin, head, content, self._limits)


class HttpxClient:
    """Requests by httpx: to a proxy, or to a URL that has to be interpreted."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url
        self._client = client
        self.aclose = client.aclose

    async def send(self, method: str, path: str, **parts: Any) -> httpx.Response:
        """See `Client.send`."""
        request = self._client.build_request(method, self._url + path, **parts)
        return await self._client.send(request, stream=True)


def open_client(
    url: str, headers: Mapping[str, str], *, connect: float, idle: float, provider: str
) -> Client | HttpxClient:
    """A client for one address; it does not follow redirects.

    Args:
        url: The address.
        headers: Sent with every request.
        connect: Seconds to reach it.
        idle: Longest silence, in seconds.
        provider: Name for error messages.

    Raises:
        ConfigurationError: The proxy of the environment for this address cannot be used.
    """
    proxy = usable_proxy(url, provider)
    scheme, netloc, path, *more = urlsplit(url)
    plain = _PLAIN_NETLOC.fullmatch(netloc)
    if proxy is None and plain and not any(more) and "/." not in path:
        origin = Origin(scheme, plain[1], int(plain[2] or _PORTS[scheme]))
        limits = {"connect": connect, "read": idle, "write": idle}
        return Client(origin, path, {"host": netloc, "accept": "*/*", **headers}, limits)
    import httpx

    try:
        client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(idle, connect=connect),
            verify=trusted_context(),
            limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS),
            proxy=proxy,
            # Proxies for other addresses are not used, so they need not be valid.
            trust_env=False,
        )
    except ImportError as error:
        reason = "SOCKS needs the package socksio, which is not installed"
        raise _unusable_proxy(str(proxy), reason, provider) from error
    return HttpxClient(url, client)


def usable_proxy(url: str, provider: str) -> str | None:
    """The proxy of the environment for an address; None if there is none.

    Raises:
        ConfigurationError: It cannot be used.
    """
    if (proxy := proxy_for(url)) is None:
        return None
    try:
        parts = urlsplit(proxy)
        is_usable = parts.scheme in _PROXIES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise _unusable_proxy(proxy, "it is not the address of a proxy", provider)
    return proxy


def _unusable_proxy(proxy: str, reason: str, provider: str) -> ConfigurationError:
    return ConfigurationError(
        f"{provider}: the proxy {without_login(proxy)} that the environment names cannot be used: "
        f"{reason}; set HTTPS_PROXY to the address of an HTTP proxy",
        provider=provider,
    )


def proxy_for(url: str) -> str | None:
    """The environment's proxy for a URL; none for a server on this machine."""
    # On these systems the settings name proxies as well.
    has_settings = sys.platform in ("darwin", "win32")
    if not has_settings and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    # A proxy would resolve loopback addresses to itself.
    if is_loopback(url) or proxy_bypass(urlsplit(url).hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_loopback(url: str) -> bool:
    """Return True if a URL's host is a loopback name or address."""
    host = (urlsplit(url).hostname or "").lower()
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")


def trusted_context() -> ssl.SSLContext:
    """The TLS context with the certificates that the environment names, otherwise with certifi's."""
    return _context_with(*certificates_of_environment())


def certificates_of_environment() -> tuple[str | None, str | None]:
    """Return the file and the folder of certificates that the environment names."""
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


@lru_cache(maxsize=1)
def _context_with(file: str | None, folder: str | None) -> ssl.SSLContext:
    if file or folder:
        context = ssl.create_default_context(cafile=file or None, capath=None if file else folder)
    else:
        import certifi

        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context
