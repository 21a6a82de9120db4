"""The transport under the shared HTTP client; httpx's own is the oracle for what it makes of bytes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from amplifier_modules._shared.http.connections import AsyncioTransport
from tests.modules._shared.http.test_client import TLS
from tests.support.raw_http import (
    STREAM_END,
    STREAM_HEAD,
    Close,
    Cut,
    Handler,
    Request,
    Write,
    answer,
    chunk,
    raw_server,
)

HEAD = b"HTTP/1.1 200 OK\r\n"


class Adapter(httpx.AsyncBaseTransport):
    """The transport as one of httpx, so that httpx's own client can be compared with it."""

    def __init__(self, transport: AsyncioTransport) -> None:
        self.transport = transport
        self.aclose = transport.aclose

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        ours = await self.transport.handle_async_request(request)

        class Body(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncGenerator[bytes]:
                async for part in ours.aiter_raw():
                    yield part

            aclose = staticmethod(ours.aclose)

        version, reason = b"HTTP/" + ours.head.http_version, bytes(ours.head.reason)
        return httpx.Response(
            ours.status_code,
            headers=ours.head.headers.raw_items(),
            stream=Body(),
            extensions={"http_version": version, "reason_phrase": reason},
        )


def client(*, keep: float = 60.0, timeout: float = 30.0, tls: Any = None) -> httpx.AsyncClient:
    def no_tls() -> ssl.SSLContext:
        raise AssertionError("TLS was not requested")

    return httpx.AsyncClient(
        transport=Adapter(AsyncioTransport(tls or no_tls, keep)), timeout=timeout
    )


def says(*parts: bytes, end: type[Exception] = Close) -> Handler:
    async def handler(_: Request, write: Write) -> None:
        for part in parts:
            await write(part)
            await asyncio.sleep(0)
        raise end

    return handler


# -- the same as httpx -----------------------------------------------------------------------

ANSWERS = {
    "length": says(HEAD + b"Content-Length: 5\r\nX-Two: a\r\nX-Two: b\r\n\r\nhello"),
    "nothing": says(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "chunks": says(STREAM_HEAD, chunk(b"one"), chunk(b"two") + chunk(b"three"), STREAM_END),
    "bytes": says(*(bytes([byte]) for byte in STREAM_HEAD + chunk(b"one") + STREAM_END)),
    "trailers": says(STREAM_HEAD, chunk(b"one"), b"0\r\nx-sum: 1\r\n\r\n"),
    "until closed": says(HEAD + b"\r\n", b"all of ", b"it"),
    "http 1.0": says(b"HTTP/1.0 200 OK\r\n\r\n", b"old"),
    "interim": says(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", answer(200, "{}")),
    "status": says(answer(418, "short and stout", reason="Teapot")),
    "no reason": says(b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok"),
    "big": says(answer(200, "x" * 1_000_000)),
    "silence": says(),
    "half a head": says(HEAD + b"content-le"),
    "half a body": says(HEAD + b"content-length: 10\r\n\r\nhalf"),
    "half a chunk": says(STREAM_HEAD, b"a\r\nhalf"),
    "no last chunk": says(STREAM_HEAD, chunk(b"one")),
    "bad chunk": says(STREAM_HEAD, b"xyz\r\none\r\n"),
    "garbage": says(b"\x00\xff garbage\r\n\r\n"),
    "endless head": says(HEAD, b"x-long: " + b"x" * 200_000),
    "reset at once": says(end=Cut),
}


async def outcome(asked: httpx.AsyncClient, url: str) -> tuple[Any, ...]:
    async with asked:
        try:
            got = await asked.post(url, content=b"question", headers={"x-mine": "1"})
        except httpx.TransportError as error:
            return (type(error),)
        return got.status_code, got.reason_phrase, got.http_version, got.headers.raw, got.content


@pytest.mark.parametrize("handler", ANSWERS.values(), ids=ANSWERS.keys())
async def test_an_answer_is_read_as_httpx_reads_it(handler: Handler) -> None:
    async with raw_server(handler) as server:
        ours = await outcome(client(), f"{server.url}/path?q=a%20b")
        theirs = await outcome(httpx.AsyncClient(trust_env=False), f"{server.url}/path?q=a%20b")
    assert ours == theirs
    sent, expected = server.requests
    assert (sent.method, sent.path, sent.headers, sent.body) == (
        expected.method,
        expected.path,
        expected.headers,
        expected.body,
    )


async def test_a_body_that_is_reset_is_never_taken_for_whole() -> None:
    arrived = asyncio.Event()

    async def handler(_: Request, write: Write) -> None:
        await write(HEAD + b"\r\nhalf")
        await arrived.wait()
        raise Cut

    async with (
        raw_server(handler) as server,
        client() as asked,
        asked.stream("POST", server.url) as response,
    ):
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"half"
        arrived.set()
        with pytest.raises(httpx.ReadError):
            await anext(pieces)


# -- connections -----------------------------------------------------------------------------


def ok(*extra: bytes) -> Handler:
    async def handler(request: Request, write: Write) -> None:
        await write(answer(200, request.path))
        for part in extra:
            await write(part)

    return handler


@pytest.mark.parametrize("end", [b"unasked", answer(200, "/stolen")])
async def test_unrequested_data_is_not_an_answer_to_the_next_request(end: bytes) -> None:
    async with raw_server(ok(end)) as server, client() as asked:
        assert (await asked.get(server.url + "/1")).text == "/1"
        assert (await asked.get(server.url + "/2")).text == "/2"
    assert server.connections == 2


async def test_an_old_connection_is_not_used_again() -> None:
    async with raw_server(ok()) as server, client(keep=0.0) as asked:
        await asked.get(server.url)
        await asyncio.sleep(0.001)
        await asked.get(server.url)
    assert server.connections == 2


async def test_a_service_that_wants_to_close_is_left() -> None:
    async def handler(_: Request, write: Write) -> None:
        await write(answer(200, "{}", {"connection": "close"}))

    async with raw_server(handler) as server, client() as asked:
        for _ in range(2):
            assert (await asked.get(server.url)).text == "{}"
    assert server.connections == 2


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    both = asyncio.Barrier(2)

    async def handler(request: Request, write: Write) -> None:
        await both.wait()
        await write(answer(200, request.path))

    async with raw_server(handler) as server, client() as asked:
        answers = await asyncio.gather(asked.get(server.url + "/1"), asked.get(server.url + "/2"))
    assert [got.text for got in answers] == ["/1", "/2"]
    assert server.connections == 2


async def test_a_host_has_several_addresses() -> None:
    async with raw_server(ok()) as server, client() as asked:
        url = server.url.replace(
            "127.0.0.1", "localhost"
        )  # may be ::1 first, where nothing listens
        assert (await asked.get(url + "/x")).text == "/x"


async def test_unknown_schemes_are_refused() -> None:
    async with client() as asked:
        with pytest.raises(httpx.UnsupportedProtocol):
            await asked.get("ftp://127.0.0.1/x")


# -- flow and limits -------------------------------------------------------------------------


async def test_what_arrived_together_is_handed_out_together() -> None:
    async with (
        raw_server(says(STREAM_HEAD + chunk(b"a") * 100 + STREAM_END)) as server,
        client() as asked,
        asked.stream("POST", server.url) as response,
    ):
        pieces = [piece async for piece in response.aiter_raw()]
    assert pieces == [b"a" * 100]


async def test_data_that_is_not_read_stays_in_the_network() -> None:
    blocked, total = asyncio.Event(), 64

    async def handler(_: Request, write: Write) -> None:
        await write(STREAM_HEAD)
        for _ in range(total):
            writing = asyncio.ensure_future(write(chunk(b"x" * (1 << 20))))
            if not (await asyncio.wait([writing], timeout=0.5))[0]:
                blocked.set()
            await writing
        await write(STREAM_END)

    async with (
        raw_server(handler) as server,
        client() as asked,
        asked.stream("POST", server.url) as response,
    ):
        await blocked.wait()
        size = 0
        async for piece in response.aiter_raw():
            size += len(piece)
    assert size == total << 20


async def test_a_request_that_is_refused_before_it_is_read_has_its_answer() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(413, "too large", {"connection": "close"}))
        await writer.drain()
        await read.wait()
        writer.close()

    read = asyncio.Event()
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with client() as asked:
            body = b"x" * 200_000  # fits into the buffers of the sockets, so that nothing blocks
            response = await asked.post(f"http://127.0.0.1:{port}", content=body)
            read.set()
    assert (response.status_code, response.text) == (413, "too large")


async def test_a_service_that_does_not_take_the_request_is_given_up() -> None:
    async def never_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await done.wait()

    done = asyncio.Event()
    async with await asyncio.start_server(never_read, "127.0.0.1", 0, limit=1024) as server:
        port = server.sockets[0].getsockname()[1]
        async with client(timeout=0.1) as asked:
            with pytest.raises(httpx.WriteTimeout):
                await asked.post(f"http://127.0.0.1:{port}", content=b"x" * (64 << 20))
        done.set()


async def test_cancelling_a_request_closes_its_connection() -> None:
    asked_for, gone = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked_for.set()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        gone.set()
        writer.close()

    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with client() as asked:
            task = asyncio.create_task(asked.get(f"http://127.0.0.1:{port}"))
            await asked_for.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(gone.wait(), 10)


# -- TLS -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def tls_server() -> AsyncGenerator[tuple[str, ssl.SSLContext]]:
    """An https address, and a context that trusts its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(STREAM_HEAD + chunk(b"secret ") + chunk(b"x" * 300_000) + STREAM_END)
                await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        yield f"https://127.0.0.1:{port}", trusting


async def test_an_encrypted_answer_is_read_and_its_connection_kept() -> None:
    async with tls_server() as (url, trusting), client(tls=lambda: trusting) as asked:
        for _ in range(2):
            response = await asked.get(url)
            assert response.content == b"secret " + b"x" * 300_000
        assert isinstance(asked._transport, Adapter)
        transport = asked._transport.transport
        assert [len(kept) for kept in transport._kept.values()] == [1]
