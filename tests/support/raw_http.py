"""A loopback server that writes exactly the bytes a test gives it, pauses and cuts included."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Write = Callable[[bytes], Awaitable[None]]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RawServer:
    """What was asked, and where to ask."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0


Handler = Callable[[Request, Write], Awaitable[None]]
"""Writes the whole answer, status line included; raising `Cut` resets the connection."""


class Cut(Exception):
    """Resets the connection at this point."""


class Close(Exception):
    """Closes the connection at this point, without an error."""


def answer(
    status: int, body: bytes | str, headers: dict[str, str] | None = None, *, reason: str = "X"
) -> bytes:
    """A whole answer with a Content-Length."""
    raw = body.encode() if isinstance(body, str) else body
    head = {"content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {status} {reason}\r\n{lines}\r\n".encode() + raw


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def raw_server(
    handler: Handler, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[RawServer]:
    """Serves until the context ends, one handler call per request, connections kept alive."""
    state = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        state.connections += 1

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            while request := await _read_request(reader):
                state.requests.append(request)
                await handler(request, write)
        except Cut:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except (Close, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()[:2]
    state.url = f"http{'s' if tls else ''}://{host}:{port}"
    try:
        yield state
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)
