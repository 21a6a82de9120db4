"""Requests to the web: every connection goes to an address checked immediately before.

    FetchError
    ├── Refused            the URL, or one it redirects to, is not allowed
    ├── Unreachable        no connection, no response, or none in time
    └── BadAnswer          too many redirects, an invalid redirect, an unreadable body

The policy is checked where the connection is made, for the very addresses it uses, so neither a
second DNS response nor another reading of a URL can lead elsewhere. URLs are read strictly: forms that
programs read differently (numbers that some read as an IPv4 address, user names, percent signs in hosts,
backslashes, control characters) are refused, not interpreted.

The body of a response is decompressed piece by piece, only as far as needed. httpx decompresses everything
that has arrived at once: a few kilobytes that unpack to gigabytes would be unpacked whole before they could
be counted.
"""

from __future__ import annotations

import asyncio
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import idna

from amplifier_modules._shared.http.connections import (
    AsyncioTransport,
    is_loopback,
    proxy_for,
    trusted_context,
)
from amplifier_modules.tool_web.config import WebConfig
from amplifier_support.addresses import AddressPolicy, RefusedAddress
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import cut_text


class FetchError(Exception):
    """A page could not be fetched; the message is for the model."""


class Refused(FetchError):
    """The address is not allowed."""

    denies_call = True


class Unreachable(FetchError):
    """There is no response."""


class BadAnswer(FetchError):
    """The response is unusable."""


ACCEPTED = "gzip, deflate"
"""The supported encodings, for the request."""

_STEP = 64 * 1024


class UnreadableBody(Exception):
    """The body does not match its headers; the message says how."""


class Decoder:
    """Decode one content encoding.

    Args:
        encoding: The answer's Content-Encoding.
        max_bytes: Most bytes to decode.

    Attributes:
        full: Whether the body was longer than `max_bytes`.

    Raises:
        UnreadableBody: The encoding is not supported.
    """

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self.full = False
        self._left = max_bytes
        self._data = bytearray()
        self._inflate: Any = None
        self._raw_deflate_possible = False
        match encoding.strip().lower():
            case "" | "identity":
                pass
            case "gzip" | "x-gzip":
                self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            case "deflate":
                self._inflate = zlib.decompressobj()
                self._raw_deflate_possible = True
            case other:
                raise UnreadableBody(f"the response has the unsupported encoding {other!r}")

    def feed(self, data: bytes) -> None:
        """Add the next piece; anything over the limit is dropped.

        Raises:
            UnreadableBody: The data does not match the encoding.
        """
        if self._inflate is None:
            self._keep(data)
            return
        while data and not self.full and not self._inflate.eof:
            step = min(_STEP, self._left + 1)
            self._keep(self._inflated(data, step))
            data = self._inflate.unconsumed_tail
            self._raw_deflate_possible = False

    def data(self) -> bytes:
        """The decoded data."""
        return bytes(self._data)

    def _inflated(self, data: bytes, max_bytes: int) -> bytes:
        try:
            return self._inflate.decompress(data, max_bytes)
        except zlib.error as error:
            if not self._raw_deflate_possible:
                raise UnreadableBody(f"the compressed response is damaged: {error}") from error
        # Some servers leave out the header that `deflate` implies.
        self._raw_deflate_possible = False
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        return self._inflated(data, max_bytes)

    def _keep(self, data: bytes) -> None:
        self.full = self.full or len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        self._data += data


_LONGEST = 8192
_ODD_CHARACTER = re.compile(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029]")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def read_url(text: str) -> httpx.URL:
    """Parse a page URL; the host is in canonical form and the fragment is dropped.

    Raises:
        Refused: It is not a page URL, or it is ambiguous.
    """
    text = text.strip(" \t\r\n")
    if len(text) > _LONGEST:
        raise Refused(f"the URL has {len(text)} characters; the limit is {_LONGEST}")
    if _ODD_CHARACTER.search(text):
        raise Refused(f"{_short(text)} contains a space, a backslash or a control character")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Refused(f"{_short(text)} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        named = f"{parts.scheme}:" if parts.scheme else "no scheme"
        raise Refused(f"only http:// and https:// are allowed; {_short(text)} has {named}")
    if "@" in parts.netloc:
        raise Refused("URLs with a user name or password are refused")
    host = _host(parts.hostname or "", bracketed="[" in parts.netloc)
    if port == 0:
        raise Refused(f"{_short(text)} has port 0")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    query = f"?{parts.query}" if parts.query else ""
    try:
        url = httpx.URL(f"{parts.scheme}://{netloc}{parts.path or '/'}{query}")
    except httpx.InvalidURL as error:
        raise Refused(f"{_short(text)} is not a URL: {error}") from error
    if url.raw_host.decode("ascii") != host or url.userinfo:
        raise Refused(f"{_short(text)} is ambiguous")
    return url


def _resolve_redirect(url: httpx.URL, location: str) -> httpx.URL:
    """Resolve a redirect from `url`.

    Raises:
        Refused: As in `read_url`.
    """
    try:
        target = urljoin(str(url), location)
    except ValueError as error:
        raise Refused(f"{_short(location)} is not a URL: {error}") from error
    return read_url(target)


def _host(host: str, *, bracketed: bool) -> str:
    if "%" in host:
        raise Refused(f"the host {_short(host)} contains a percent sign")
    if bracketed:
        try:
            return str(IPv6Address(host))
        except ValueError as error:
            raise Refused(f"the host [{host[:60]}] is not an IPv6 address") from error
    name = _ascii(host).removesuffix(".")
    if not name:
        raise Refused("the URL has no host")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise Refused(f"{_short(host)} is not a host name")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(IPv4Address(name))
        except ValueError as error:
            raise Refused(
                f"{_short(host)} is neither a host name nor four decimal numbers separated by dots"
            ) from error
    return name


def _ascii(host: str) -> str:
    """A host name in the form used for lookups: lower case, other scripts as punycode."""
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise Refused(f"{_short(host)} is not a host name: {error}") from error


def _short(text: str) -> str:
    """Shorten part of a URL for a message; its author may have made it to be read."""
    return repr(cut_text(text, 120))


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

_CONNECT_SECONDS = 10.0
_KEEP_SECONDS = 15.0
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_ADDRESSES = 8


class Answer(NamedTuple):
    """A response.

    Attributes:
        url: Its URL, after redirects.
        status: The HTTP status; never a redirect.
        headers: By lower-case name.
        body: Decompressed.
        cut: Whether the body was cut at the limit.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool


async def system_resolver(host: str, port: int) -> list[str]:
    """Resolve a host with the system's resolver. Raises OSError if there are no addresses."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


_Transport = httpx.AsyncBaseTransport | AsyncioTransport


class Web:
    """Fetch pages; one for each session. Call `close` at the end.

    Args:
        config: The module's settings.
        resolver: Resolves host names.
    """

    def __init__(self, config: WebConfig, resolver: Resolver = system_resolver) -> None:
        self._config = config
        self._resolver = resolver
        self._policy = AddressPolicy(config.allow_hosts, config.allow_private)
        self._direct = AsyncioTransport(trusted_context, _KEEP_SECONDS, self._allowed_addresses)
        self._to_search = AsyncioTransport(trusted_context, _KEEP_SECONDS)
        self._proxied: dict[str, httpx.AsyncBaseTransport] = {}

    @property
    def identity(self) -> str:
        """The access rules as text: pages cached under other rules are not used."""
        domains = (self._config.allowed_domains, self._config.blocked_domains)
        return f"{self._policy.identity} {self._config.max_bytes} {domains}"

    async def fetch(self, address: str, headers: Mapping[str, str]) -> Answer:
        """Get a page, following redirects.

        Args:
            address: The URL as the model gave it.
            headers: Headers to send.

        Raises:
            FetchError: It could not be fetched.
        """
        try:
            async with asyncio.timeout(self._config.timeout):
                return await self._follow_redirects(read_url(address), headers)
        except RefusedAddress as error:
            raise Refused(str(error)) from error
        except TimeoutError as error:
            raise Unreachable(
                f"{address} did not answer within the time limit of {self._config.timeout:g} s"
            ) from error

    async def ask_service(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> Answer:
        """Ask a service the user has configured, at any address; redirects are not followed.

        Raises:
            FetchError: There is no response.
        """
        try:
            request = httpx.Request(method, url, headers=self._headers(headers), content=content)
            near = is_loopback(url)  # a proxy would use its own machine
            transport = None if near else self._proxy(request.url)
            async with asyncio.timeout(self._config.timeout):
                return await self._exchange(transport or self._to_search, request)
        except httpx.InvalidURL as error:
            raise BadAnswer(f"{url} is not a URL: {error}") from error
        except TimeoutError as error:
            raise Unreachable(
                f"{httpx.URL(url).host} did not answer within {self._config.timeout:g} s"
            ) from error

    async def close(self) -> None:
        """Close all connections."""
        for transport in (self._direct, self._to_search, *self._proxied.values()):
            await transport.aclose()
        self._proxied.clear()

    # -- one page ----------------------------------------------------------------------

    async def _follow_redirects(self, url: httpx.URL, headers: Mapping[str, str]) -> Answer:
        for _ in range(self._config.max_redirects + 1):
            self.check(url)
            request = httpx.Request("GET", url, headers=self._headers(headers))
            answer = await self._exchange(await self._way_to(url), request)
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            url = _resolve_redirect(url, location)
        raise BadAnswer(f"{url} redirects more than {self._config.max_redirects} times")

    def check(self, url: httpx.URL) -> None:
        """Check what a URL shows without a lookup, which itself would be a request.

        Raises:
            Refused, RefusedAddress: It is not allowed, now or later.
        """
        self._check_domain(url)
        host = url.host
        # A name of this machine, whatever it resolves to.
        address = "127.0.0.1" if is_loopback(str(url)) and not _is_address(host) else host
        if _is_address(address):
            self._policy.check(host, _port(url), address)

    def _check_domain(self, url: httpx.URL) -> None:
        host = url.netloc.decode("ascii").lower()
        for blocked in self._config.blocked_domains:
            if blocked.lower() in host:
                by = f"blocked_domains in the tool's config ({blocked!r})"
                raise Refused(f"{url.host} is denied by {by}")
        allowed = [domain.lower() for domain in self._config.allowed_domains]
        names = (host, url.host.lower())
        if allowed and not any(
            name == domain or name.endswith(f".{domain}") for name in names for domain in allowed
        ):
            raise Refused(
                f"{url.host} is outside the domains this tool may use: {', '.join(allowed)} "
                "(grant more with allowed_domains in the tool's config)"
            )

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "user-agent": self._config.user_agent,
            "accept-encoding": ACCEPTED,
            **more,
        }

    async def _exchange(self, transport: _Transport, request: httpx.Request) -> Answer:
        limit = self._config.timeout
        connect = min(limit, _CONNECT_SECONDS)
        limits = {"connect": connect, "read": limit, "write": limit, "pool": limit}
        request.extensions["timeout"] = limits
        try:
            response = await transport.handle_async_request(request)
            try:
                most = self._config.max_bytes
                if response.status_code in _REDIRECTS:
                    most = 0  # the body of a redirect is not needed
                body = Decoder(response.headers.get("content-encoding", ""), most)
                async for piece in response.aiter_raw():
                    body.feed(piece)
                    if body.full:
                        break
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise Unreachable(self._unreachable(request.url, error)) from error
        except UnreadableBody as error:
            place = request.url.copy_with(query=None)  # a service's query may hold a key
            raise BadAnswer(f"{place}: {error}") from error
        return Answer(
            str(request.url), response.status_code, response.headers, body.data(), body.full
        )

    def _unreachable(self, url: httpx.URL, error: httpx.TransportError) -> str:
        reason = str(error) or type(error).__name__
        hint = ""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            if proxy_for(str(url)) and not self._config.use_proxy:
                hint = "; the environment has a proxy: set use_proxy of tool-web to use it"
            if isinstance(error.__cause__, socket.gaierror):
                reason = f"unknown host ({reason})"
        return f"{url.host} cannot be reached: {reason}{hint}"

    # -- transports ------------------------------------------------------------------------

    async def _allowed_addresses(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a host, all of which are allowed."""
        addresses = [host] if _is_address(host) else await self._resolver(host, port)
        addresses = addresses[:_MAX_ADDRESSES]
        for address in addresses:
            self._policy.check(host, port, address)
        return addresses

    async def _way_to(self, url: httpx.URL) -> _Transport:
        proxied = self._proxy(url)
        if proxied is None:
            return self._direct
        # The proxy resolves the name itself: here it is only checked. A name this machine cannot
        # resolve is refused too, as its address is unknown.
        try:
            await self._allowed_addresses(url.host, _port(url))
        except OSError as error:
            raise Unreachable(
                f"{url.host} is not requested through the proxy: its name cannot be resolved "
                f"here to check it ({error})"
            ) from error
        return proxied

    def _proxy(self, url: httpx.URL) -> httpx.AsyncBaseTransport | None:
        proxy = proxy_for(str(url)) if self._config.use_proxy else None
        if proxy is None:
            return None
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx.AsyncHTTPTransport(verify=trusted_context(), proxy=proxy)
        return self._proxied[proxy]


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
