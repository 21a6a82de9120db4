"""Reading addresses of pages: one strict reading, so that nobody after us reads another host.

Forms that programs read differently are refused rather than interpreted: numbers that some take
for an IPv4 address, user names, percent signs in hosts, backslashes, control characters.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urljoin, urlsplit

from amplifier_modules._shared.http.lean_httpx import httpx

_LONGEST = 8192
_ODD_CHARACTER = re.compile(r"[\x00-\x20\x7f-\x9f\\\u2028\u2029]")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class RefusedURL(Exception):
    """An address that is not asked; the message says why."""


def read_url(text: str) -> httpx.URL:
    """The address of a page, with the host in its one canonical form and without a fragment.

    Raises:
        RefusedURL: It is no address of a page, or one that could be read in two ways.
    """
    text = text.strip(" \t\r\n")
    if len(text) > _LONGEST:
        raise RefusedURL(f"the address has {len(text)} characters; {_LONGEST} are the most")
    if _ODD_CHARACTER.search(text):
        raise RefusedURL(f"{_short(text)} has a blank, a backslash or a control character in it")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise RefusedURL(f"{_short(text)} is no address: {error}") from error
    if parts.scheme not in ("http", "https"):
        named = f"{parts.scheme}:" if parts.scheme else "no scheme"
        raise RefusedURL(f"only http:// and https:// are asked; {_short(text)} has {named}")
    if "@" in parts.netloc:
        raise RefusedURL("addresses with a user name or password in them are not asked")
    host = _host(parts.hostname or "", bracketed="[" in parts.netloc)
    if port == 0:
        raise RefusedURL(f"{_short(text)} has port 0")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    query = f"?{parts.query}" if parts.query else ""
    try:
        url = httpx.URL(f"{parts.scheme}://{netloc}{parts.path or '/'}{query}")
    except httpx.InvalidURL as error:
        raise RefusedURL(f"{_short(text)} is no address: {error}") from error
    if url.raw_host.decode("ascii") != host or url.userinfo:
        raise RefusedURL(f"{_short(text)} can be read in more than one way")
    return url


def redirected(url: httpx.URL, location: str) -> httpx.URL:
    """Where an answer from `url` leads.

    Raises:
        RefusedURL: As for `read_url`.
    """
    try:
        target = urljoin(str(url), location)
    except ValueError as error:
        raise RefusedURL(f"{_short(location)} is no address: {error}") from error
    return read_url(target)


def _host(host: str, *, bracketed: bool) -> str:
    if "%" in host:
        raise RefusedURL(f"the host {_short(host)} has a percent sign in it")
    if bracketed:
        try:
            return str(IPv6Address(host))
        except ValueError as error:
            raise RefusedURL(f"the host [{host[:60]}] is no IPv6 address") from error
    name = _ascii(host).removesuffix(".")
    if not name:
        raise RefusedURL("the address has no host")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise RefusedURL(f"{_short(host)} is no name of a host")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(IPv4Address(name))
        except ValueError as error:
            raise RefusedURL(
                f"{_short(host)} is neither a name nor four decimal numbers with dots between"
            ) from error
    return name


def _ascii(host: str) -> str:
    """A host's name as it is looked up: in lower case, other scripts as punycode."""
    if host.isascii():
        return host.lower()
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise RefusedURL(f"{_short(host)} is no name of a host: {error}") from error


def _short(text: str) -> str:
    """A part of an address in a message; who made the address may have made it to be read."""
    return repr(text if len(text) <= 120 else f"{text[:120]}…")
