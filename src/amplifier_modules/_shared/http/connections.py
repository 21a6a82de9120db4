"""The transport and TLS for an address."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache

from amplifier_modules._shared.http.asyncio_transport import AsyncioTransport
from amplifier_modules._shared.http.environment import (
    certificates_of_environment,
    is_usable,
    proxy_for,
)
from amplifier_modules._shared.http.errors import without_login
from amplifier_modules._shared.http.lean_httpx import httpx

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
