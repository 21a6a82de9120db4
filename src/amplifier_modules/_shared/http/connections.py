"""How an address is reached: its transport, TLS and the proxies of the environment."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from amplifier_modules._shared.http.asyncio_transport import AsyncioTransport
from amplifier_modules._shared.http.certificates import certificates_of_environment
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
        ValueError: The proxy of the environment for this address is invalid.
        ImportError: It needs a package that is not installed.
    """
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(idle, connect=connect),
        follow_redirects=False,
        **_connection_options(url),
    )


def trusted_context() -> ssl.SSLContext:
    """The TLS context: httpx's default, or one with the certificate files of the environment."""
    return _context_with(certificates_of_environment())


@lru_cache(maxsize=1)
def _context_with(_certificates: tuple[str | None, ...]) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _connection_options(url: str) -> dict[str, Any]:
    proxy = proxy_for(url)
    if proxy is None:
        return {"transport": AsyncioTransport(trusted_context, _KEEPALIVE_SECONDS)}
    if not _is_usable(proxy):
        raise ValueError("it is not the address of a proxy")
    limits = httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS)
    # Proxies for other addresses are not used, so they need not be valid.
    return {"verify": trusted_context(), "limits": limits, "proxy": proxy, "trust_env": False}


def proxy_for(url: str) -> str | None:
    """The environment's proxy for a URL; none for a server on this machine."""
    # A proxy would resolve loopback addresses to itself.
    if is_loopback(url) or proxy_bypass(urlsplit(url).hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def _is_usable(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        is_known = parts.scheme in ("http", "https", "socks5", "socks5h")
        return is_known and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether a URL's host is a loopback name or address."""
    host = (urlsplit(url).hostname or "").lower()
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")
