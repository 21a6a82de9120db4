"""Just enough HTTP/1.1 on asyncio streams: requests in, fixed and chunked responses out."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 32 * 1024 * 1024


@dataclass
class Request:
    """A request as it arrived.

    Attributes:
        headers: Names in lower case.
        body: The parsed JSON; None when there was none or it does not parse.
        arrived: `time.monotonic()` when the body was complete, in seconds.
        rejection: The message of the 4xx answer the server's own rules gave, if any.
        client_left: The client closed the connection before the answer was complete.
        answered: The whole scripted answer, faults included, has been sent.
        client_port: TCP port it came from; the same for all requests of one connection.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    raw: bytes
    body: Any = None
    arrived: float = field(default_factory=time.monotonic)
    rejection: str | None = None
    client_left: bool = False
    answered: bool = False
    client_port: int = 0


class BadRequest(Exception):
    """What arrived is not an HTTP/1.1 request that this server reads."""


class ClientLeft(Exception):
    """The client closed its side while an answer was on its way."""


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request on a connection; None when the client closed it between requests.

    Raises:
        BadRequest: The bytes are no request, or the body is over `MAX_BODY` bytes.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadRequest("the connection closed inside a request") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("the request's head is too long") from error
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    try:
        method, target, _version = first.split(" ")
    except ValueError as error:
        raise BadRequest(f"no request line: {first!r}") from error
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raw = await _read_body(reader, headers)
    url = urlsplit(target)
    request = Request(method, url.path, url.query, headers, raw)
    try:
        request.body = json.loads(raw) if raw else None
    except ValueError:
        request.body = None
    return request


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts: list[bytes] = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readline()
        return b"".join(parts)
    length = int(headers.get("content-length", 0))
    if length > MAX_BODY:
        raise BadRequest(f"a body of {length} bytes")
    return await reader.readexactly(length)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class Responder:
    """Writes one response; knows when the client is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.keep_alive = True
        # Draining then means that everything is handed to the operating system.
        writer.transport.set_write_buffer_limits(0)

    def head(self, status: int, headers: Mapping[str, str]) -> bytes:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Overloaded" if status == 529 else "Unknown"
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def write(self, data: bytes) -> None:
        """Sends bytes. Raises `ClientLeft` when the connection is closed."""
        if self._writer.is_closing():
            raise ClientLeft
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise ClientLeft from error

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole response with a length."""
        await self.write(self.head(status, {**headers, "content-length": str(len(body))}) + body)

    async def send_json(
        self, status: int, value: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole response of JSON."""
        await self.send(
            status, {"content-type": "application/json", **(headers or {})}, encode(value)
        )

    async def pause(self, seconds: float | None) -> None:
        """Waits so long (None: for ever). Raises `ClientLeft` as soon as the client closes."""
        if seconds == 0:
            return
        # No client here pipelines, so the only thing to read while answering is the end.
        gone = asyncio.ensure_future(self._reader.read(1))
        try:
            done, _ = await asyncio.wait([gone], timeout=seconds)
            if done:
                raise ClientLeft
        finally:
            if not gone.done():
                gone.cancel()
                await asyncio.wait([gone])
            elif not gone.cancelled():
                gone.exception()

    def reset(self) -> None:
        """Closes with RST, so that the client sees a reset and not an end."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self.keep_alive = False

    def close(self) -> None:
        """Closes the connection once what is written has gone out."""
        self._writer.close()
        self.keep_alive = False


def encode(value: Any) -> bytes:
    """JSON as the vendors send it: UTF-8 unescaped, except what UTF-8 cannot say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
