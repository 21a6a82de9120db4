"""Forbids every connection beyond loopback in this interpreter.

Imported by the suite itself, and by child interpreters that find this folder on PYTHONPATH. An
audit hook sees what patching `socket` would miss and costs nothing to import; it cannot be taken
out again, so `allowed` opens it for the tests that are marked for it.
"""

import sys
from typing import Any

allowed = False
_installed = False


class NetworkForbidden(OSError):
    """A test, or what it started, reached for the network."""


def is_loopback(host: object) -> bool:
    """Whether a host name or literal stays on this machine; '' and None are the wildcard."""
    if isinstance(host, bytes | bytearray):
        host = bytes(host).decode("latin-1")
    if not host:
        return True
    name = str(host).partition("%")[0].lower()
    if name == "localhost" or name.endswith(".localhost") or name == "::1":
        return True
    if name.startswith("::ffff:"):
        name = name.removeprefix("::ffff:")
    octets = name.split(".")
    return octets[0] == "127" and len(octets) == 4 and all(o.isdigit() for o in octets)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not event.startswith("socket.") or allowed:
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) and address else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not is_loopback(host):
        raise NetworkForbidden(f"tests stay on loopback: {event} to {host!r} is forbidden")


def install() -> None:
    """Starts watching, once."""
    global _installed
    if not _installed:
        sys.addaudithook(_watch)
        _installed = True


install()
