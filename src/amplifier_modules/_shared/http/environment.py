"""The proxies and certificates that the environment names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """The environment's proxy for a URL; none for a server on this machine."""
    # A proxy would resolve loopback addresses to itself.
    if is_loopback(url) or proxy_bypass(urlsplit(url).hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_usable(proxy: str) -> bool:
    """Return True if the URL of a proxy has a known scheme, a host and a valid port."""
    try:
        parts = urlsplit(proxy)
        is_known = parts.scheme in ("http", "https", "socks5", "socks5h")
        return is_known and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Return True if a URL's host is a loopback name or address."""
    host = (urlsplit(url).hostname or "").lower()
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")


def certificates_of_environment() -> tuple[str | None, ...]:
    """Return the variables that a TLS context depends on, to know when one that is kept is out of
    date.
    """
    return tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
