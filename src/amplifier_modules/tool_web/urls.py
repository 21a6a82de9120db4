"""Read page URLs strictly, so that no later reader can see a different host.

Forms that programs read differently are refused, not interpreted: numbers that some read as an IPv4
address, user names, percent signs in hosts, backslashes, control characters.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urljoin, urlsplit

import idna

from amplifier_modules._shared.http.lean_httpx import httpx
from amplifier_support.printable import cut_text

_LONGEST = 8192
_ODD_CHARACTER = re.compile(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029]")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class RefusedURL(Exception):
    """A URL that is refused; the message says why."""


def read_url(text: str) -> httpx.URL:
    """Parse a page URL; the host is in canonical form and the fragment is dropped.

    Raises:
        RefusedURL: It is not a page URL, or it is ambiguous.
    """
    text = text.strip(" \t\r\n")
    if len(text) > _LONGEST:
        raise RefusedURL(f"the URL has {len(text)} characters; the limit is {_LONGEST}")
    if _ODD_CHARACTER.search(text):
        raise RefusedURL(f"{_short(text)} contains a space, a backslash or a control character")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise RefusedURL(f"{_short(text)} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        named = f"{parts.scheme}:" if parts.scheme else "no scheme"
        raise RefusedURL(f"only http:// and https:// are allowed; {_short(text)} has {named}")
    if "@" in parts.netloc:
        raise RefusedURL("URLs with a user name or password are refused")
    host = _host(parts.hostname or "", bracketed="[" in parts.netloc)
    if port == 0:
        raise RefusedURL(f"{_short(text)} has port 0")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    query = f"?{parts.query}" if parts.query else ""
    try:
        url = httpx.URL(f"{parts.scheme}://{netloc}{parts.path or '/'}{query}")
    except httpx.InvalidURL as error:
        raise RefusedURL(f"{_short(text)} is not a URL: {error}") from error
    if url.raw_host.decode("ascii") != host or url.userinfo:
        raise RefusedURL(f"{_short(text)} is ambiguous")
    return url


def resolve_redirect(url: httpx.URL, location: str) -> httpx.URL:
    """Resolve a redirect from `url`.

    Raises:
        RefusedURL: As in `read_url`.
    """
    try:
        target = urljoin(str(url), location)
    except ValueError as error:
        raise RefusedURL(f"{_short(location)} is not a URL: {error}") from error
    return read_url(target)


def _host(host: str, *, bracketed: bool) -> str:
    if "%" in host:
        raise RefusedURL(f"the host {_short(host)} contains a percent sign")
    if bracketed:
        try:
            return str(IPv6Address(host))
        except ValueError as error:
            raise RefusedURL(f"the host [{host[:60]}] is not an IPv6 address") from error
    name = _ascii(host).removesuffix(".")
    if not name:
        raise RefusedURL("the URL has no host")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise RefusedURL(f"{_short(host)} is not a host name")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(IPv4Address(name))
        except ValueError as error:
            raise RefusedURL(
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
        raise RefusedURL(f"{_short(host)} is not a host name: {error}") from error


def _short(text: str) -> str:
    """Shorten part of a URL for a message; its author may have made it to be read."""
    return repr(cut_text(text, 120))
