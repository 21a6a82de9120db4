"""Requests to the web: every connection goes to an address checked immediately before.

    FetchError
    ├── Refused            the URL, or one it redirects to, is not allowed
    ├── Unreachable        no connection, no response, or none in time
    └── BadAnswer          too many redirects, an invalid redirect, an unreadable body

The policy is checked where the connection is made, for the very addresses it uses, so neither a
second DNS response nor another reading of a URL can lead elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple, cast

from amplifier_modules._shared.http.asyncio_transport import AsyncioTransport
from amplifier_modules._shared.http.connections import trusted_context
from amplifier_modules._shared.http.lean_httpx import httpx
from amplifier_modules._shared.http.proxies import is_loopback, proxy_for
from amplifier_modules.tool_web import body
from amplifier_modules.tool_web.config import WebConfig
from amplifier_modules.tool_web.urls import RefusedURL, read_url, resolve_redirect
from amplifier_support.addresses import AddressPolicy, RefusedAddress

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

_CONNECT_SECONDS = 10.0
_KEEP_SECONDS = 15.0
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_ADDRESSES = 8


class FetchError(Exception):
    """A page could not be fetched; the message is for the model."""


class Refused(FetchError):
    """The address is not allowed."""

    denies_call = True


class Unreachable(FetchError):
    """There is no response."""


class BadAnswer(FetchError):
    """The response is unusable."""


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
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


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
        except (RefusedURL, RefusedAddress) as error:
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
            self._check_domain(url)
            request = httpx.Request("GET", url, headers=self._headers(headers))
            answer = await self._exchange(await self._way_to(url), request)
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            url = resolve_redirect(url, location)
        raise BadAnswer(f"{url} redirects more than {self._config.max_redirects} times")

    def _check_domain(self, url: httpx.URL) -> None:
        host = url.netloc.decode("ascii").lower()
        for blocked in self._config.blocked_domains:
            if blocked.lower() in host:
                raise Refused(f"{url.host} is blocked by {blocked!r} in 'blocked_domains'")
        allowed = [domain.lower() for domain in self._config.allowed_domains]
        names = (host, url.host.lower())
        if allowed and not any(
            name == domain or name.endswith(f".{domain}") for name in names for domain in allowed
        ):
            raise Refused(f"{url.host} is not in 'allowed_domains': {', '.join(allowed)}")

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "user-agent": self._config.user_agent,
            "accept-encoding": body.ACCEPTED,
            **more,
        }

    async def _exchange(
        self, transport: httpx.AsyncBaseTransport, request: httpx.Request
    ) -> Answer:
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
                encoding = response.headers.get("content-encoding", "")
                stream = cast("AsyncIterator[bytes]", response.stream)
                data, cut = await body.read_body(aiter(stream), encoding, most)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise Unreachable(self._unreachable(request.url, error)) from error
        except body.UnreadableBody as error:
            place = request.url.copy_with(query=None)  # a service's query may hold a key
            raise BadAnswer(f"{place}: {error}") from error
        return Answer(str(request.url), response.status_code, response.headers, data, cut)

    def _unreachable(self, url: httpx.URL, error: httpx.TransportError) -> str:
        reason = str(error) or type(error).__name__
        hint = ""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            if _proxy_for(url) and not self._config.use_proxy:
                hint = "; the environment has a proxy: set use_proxy of tool-web to use it"
            if isinstance(error.__cause__, socket.gaierror):
                reason = f"unknown host ({reason})"
        return f"{url.host} cannot be reached: {reason}{hint}"

    # -- transports ------------------------------------------------------------------------

    async def _allowed_addresses(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a host, all of which are allowed."""
        found = [host] if _is_address(host) else list(await self._resolver(host, port))
        found = found[:_MOST_ADDRESSES]
        for address in found:
            self._policy.check(host, port, address)
        return found

    async def _way_to(self, url: httpx.URL) -> httpx.AsyncBaseTransport:
        proxied = self._proxy(url)
        if proxied is None:
            return self._direct
        # The proxy resolves the name itself: here it is only checked. A name this machine cannot
        # resolve is refused too, as its address is unknown.
        try:
            await self._allowed_addresses(
                url.host, url.port or (443 if url.scheme == "https" else 80)
            )
        except OSError as error:
            raise Unreachable(
                f"{url.host} is not requested through the proxy: its name cannot be resolved "
                f"here to check it ({error})"
            ) from error
        return proxied

    def _proxy(self, url: httpx.URL) -> httpx.AsyncBaseTransport | None:
        proxy = _proxy_for(url) if self._config.use_proxy else None
        if proxy is None:
            return None
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx.AsyncHTTPTransport(verify=trusted_context(), proxy=proxy)
        return self._proxied[proxy]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _proxy_for(url: httpx.URL) -> str | None:
    """The environment's proxy for a URL."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    return proxy_for(str(url))
