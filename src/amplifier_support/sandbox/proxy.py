"""The proxy through which commands reach the hosts that their policy names, and no others.

It listens on a UNIX socket. Commands have a network of their own, where `forwarder` passes what they
send to a local port on to that socket. The address that was checked is the one connected to: a host
name never leads to this machine or a private network.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from amplifier_support.addresses import Address, AddressPolicy, RefusedAddress, read_rule
from amplifier_support.named_tuple import NamedTuple

_MAX_HEAD = 64 * 1024
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 15.0
_MAX_CONNECTIONS = 256
_MAX_NAMED = 10
"""Refused hosts to name: a command may ask for thousands."""

_CHUNK = 64 * 1024
_MAX_HOST = 253
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"({_LABEL}\.)*{_LABEL}\.?")
_OWN_MACHINE = ("localhost",)
_NOT_PASSED_ON = frozenset({b"connection", b"proxy-connection", b"proxy-authorization", b"host"})


class _Refusal(Exception):
    """A request that is not passed on; the message is for the program that made it."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Target(NamedTuple):
    """The target of a request: host, port, and the first bytes to send there."""

    host: str
    port: int
    first: bytes | None


class Proxy:
    """Serves the commands of one session, on the running event loop.

    Args:
        hosts: The hosts they may reach: names, `*.` and a suffix, or addresses, each with an
            optional port. Only an entry that is an address itself, or `localhost`, may lead to
            this machine or a private network.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._rules = {entry: read_rule(entry) for entry in hosts}
        setting = "'network' of the sandbox by its address"
        own = [
            entry
            for entry, rule in self._rules.items()
            if rule.network is not None or rule.name in _OWN_MACHINE
        ]
        self._own = AddressPolicy(own, setting=setting)
        self._public = AddressPolicy(setting=setting)
        self._listed = ", ".join(hosts) or "none"
        self._unlisted: dict[str, None] = {}
        self._refused: dict[str, str] = {}
        self._more_refused = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, path: str) -> None:
        """Listen on a UNIX socket that is created.

        Raises:
            OSError: It cannot be created.
        """
        self._server = await asyncio.start_unix_server(
            self._accept, path, limit=_MAX_HEAD, backlog=100
        )

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()

    def take_refusals(self) -> list[str]:
        """Why hosts were refused since the last call, each as a sentence; only the first are named."""
        refused = [*self._refused.values()]
        if self._more_refused:
            refused.append(f"other hosts were refused, too (requests: {self._more_refused})")
        self._refused.clear()
        self._more_refused = 0
        return refused

    def take_unlisted(self) -> list[str]:
        """Return the hosts, each with its port, that were refused since the last call because they are not listed."""
        unlisted = [*self._unlisted]
        self._unlisted.clear()
        return unlisted

    def _note_refusal(self, host: str, why: str) -> None:
        if host in self._refused or len(self._refused) < _MAX_NAMED:
            self._refused[host] = why
        else:
            self._more_refused += 1

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A program that closes its connection early needs no answer.
            with contextlib.suppress(OSError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = await _read_target(reader)
            their_reader, their_writer = await self._connect(target)
        except _Refusal as refusal:
            body = f"{refusal}\n".encode()
            head = f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            return
        try:
            if target.first is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                their_writer.write(target.first)
            await _exchange((reader, their_writer), (their_reader, writer))
        finally:
            their_writer.close()

    async def _connect(self, target: _Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port, _ = target
        literal = _address(host)
        if not any(rule.covers(host, port, literal) for rule in self._rules.values()):
            why = f"{host}:{port} is not one of the hosts that commands may use: {self._listed}"
            self._note_refusal(f"{host}:{port}", why)
            if len(self._unlisted) < _MAX_NAMED:
                self._unlisted[f"{host}:{port}"] = None
            raise _Refusal("403 Forbidden", f"the sandbox refused the connection: {why}")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = [host] if literal else await _resolve(host, port)
                policy = self._own if literal or host in _OWN_MACHINE else self._public
                for address in addresses:
                    policy.check(host, port, address)
                return await _connect_to_first(addresses, port)
        except RefusedAddress as error:
            self._note_refusal(f"{host}:{port}", str(error))
            raise _Refusal(
                "403 Forbidden", f"the sandbox refused the connection: {error}"
            ) from error
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no connection within {_CONNECT_SECONDS:g} s"
            raise _Refusal("502 Bad Gateway", f"{host}:{port} cannot be reached: {why}") from error


def _address(host: str) -> Address | None:
    """The address that a host is given as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


async def _resolve(host: str, port: int) -> list[str]:
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def _connect_to_first(
    addresses: Sequence[str], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    problem: OSError | None = None
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port)
        except OSError as error:
            problem = error
    raise problem or OSError("it has no address")


async def _read_target(reader: asyncio.StreamReader) -> _Target:
    """Read the head of a request.

    Raises:
        _Refusal: It is not one that a proxy can pass on.
    """
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
        raise _Refusal("400 Bad Request", "the request has no head") from error
    line, *headers = head[:-4].split(b"\r\n")
    try:
        method, url, version = line.decode("ascii").split(" ")
        if method == "CONNECT":
            host, _, port = url.rpartition(":")
            return _Target(_check_host(host), _port(port), None)
        parts = urlsplit(url)
        if parts.scheme != "http" or not version.startswith("HTTP/1.") or parts.username:
            raise ValueError(url)
        host, port_number = _check_host(parts.hostname or ""), parts.port or 80
    except ValueError as error:
        raise _Refusal("400 Bad Request", "a proxy takes CONNECT and http:// requests") from error
    path = parts._replace(scheme="", netloc="").geturl() or "/"
    # The host was checked, so it is the one that is asked for.
    kept = [
        header
        for header in headers
        if header.partition(b":")[0].strip().lower() not in _NOT_PASSED_ON
    ]
    name = host if port_number == 80 else f"{host}:{port_number}"
    first = [f"{method} {path} HTTP/1.1".encode(), f"Host: {name}".encode(), b"Connection: close"]
    return _Target(host, port_number, b"\r\n".join([*first, *kept, b"", b""]))


def _check_host(host: str) -> str:
    lower = host.lower()
    if len(lower) > _MAX_HOST or not _HOST.fullmatch(lower):
        raise ValueError(host)
    return lower.removesuffix(".")


def _port(text: str) -> int:
    if not text.isdigit() or int(text) not in range(1, 65536):
        raise ValueError(text)
    return int(text)


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _exchange(stream: _Stream, other: _Stream) -> None:
    """Pass on what comes, in both directions, until both have ended."""
    async with asyncio.TaskGroup() as group:
        for reader, writer in (stream, other):
            group.create_task(_pass_on(reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # The other side may end at any time; what it did not take is of no use.
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
