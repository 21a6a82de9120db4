"""The network by host name: the proxy by itself, and commands that use it."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_support.process.commands import ProcessRunner
from amplifier_support.process_tree import descendants
from amplifier_support.sandbox.policy import parse_policy
from amplifier_support.sandbox.proxy import Proxy
from tests.amplifier_support.sandbox.test_namespaces import Box, needs_namespaces
from tests.support.waiting import eventually


class Upstream:
    """An HTTP server on loopback that notes the requests it gets."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    server = Upstream()
    await server.start()
    yield server
    server.close()


async def ask(path: Path, request: str) -> str:
    """What the proxy answers to a request, up to its end."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request.encode())
    writer.write_eof()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="UNIX sockets")
async def test_only_listed_hosts_are_reached_and_only_at_checked_addresses(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = upstream.port
    loop = asyncio.get_running_loop()
    asked: list[str] = []

    async def resolve(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        addresses = {"mixed.test": ["93.184.216.34", "127.0.0.1"], "v6.test": ["::ffff:127.0.0.1"]}
        found = addresses.get(host, ["127.0.0.1"])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    hosts = [f"127.0.0.1:{port}", "evil.test", "*.wild.test", "mixed.test", "v6.test"]
    proxy = Proxy(hosts)
    path = tmp_path / "proxy"
    await proxy.start(str(path))
    try:
        there = f"127.0.0.1:{port}"
        got = await ask(path, f"GET http://{there}/a?b HTTP/1.1\r\nHost: other\r\nX: y\r\n\r\n")
        assert got.endswith("hello")
        tunnel = await ask(path, f"CONNECT {there} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        assert tunnel.startswith("HTTP/1.1 200 Connection established")
        assert tunnel.endswith("hello")
        assert upstream.heads[0].split("\r\n")[:2] == ["GET /a?b HTTP/1.1", f"Host: {there}"]
        forbidden = (
            f"CONNECT 127.0.0.1:{port + 1}",
            f"CONNECT localhost:{port}",
            "CONNECT 0.0.0.0:80",
            "CONNECT unlisted.test:443",
            "CONNECT wild.test:443",
            "CONNECT evilwild.test:443",
            "CONNECT 169.254.169.254:80",
            f"GET http://unlisted.test:{port}/",
            # Listed, but not at an address that is public.
            f"CONNECT evil.test:{port}",
            f"CONNECT EVIL.test.:{port}",
            f"CONNECT a.wild.test:{port}",
            f"CONNECT mixed.test:{port}",
            f"CONNECT v6.test:{port}",
            f"GET http://evil.test:{port}/",
        )
        for request in forbidden:
            answer = await ask(path, f"{request} HTTP/1.1\r\nHost: {there}\r\n\r\n")
            assert answer.startswith("HTTP/1.1 403 Forbidden"), request
            assert "the sandbox refused the connection" in answer
        # A few are named: the model learns what a command was refused.
        named = proxy.take_refusals()
        assert named[0].startswith(f"127.0.0.1:{port + 1} is not one of the hosts")
        assert len(named) == 11
        assert named[10] == "other hosts were refused, too (requests: 2)"
        assert proxy.take_refusals() == []
        malformed = (
            f"CONNECT user@{there}",
            f"GET http://evil@{there}/",
            f"GET http://{there}@unlisted.test/",
            "GET /",
            "CONNECT [::1]:80",
            f"CONNECT {there}\x00",
            "GET ftp://evil.test/",
            "CONNECT evil.test:port",
            "one two three four",
            # What is not part of an address must not reach the resolver or the socket.
            "CONNECT a..wild.test:80",
            f"CONNECT {'a' * 64}.wild.test:80",
            f"CONNECT {'a.' * 127}wild.test:80",
            *(f"CONNECT 127.0.0.1:{number}" for number in ("0", "65536", "-1", "8_0", "9" * 5000)),
        )
        for request in malformed:
            answer = await ask(path, f"{request} HTTP/1.1\r\n\r\n")
            assert answer.startswith("HTTP/1.1 400 Bad Request"), request
        assert len(upstream.heads) == 2
        assert "unlisted.test" not in asked
    finally:
        proxy.close()


@needs_namespaces
async def test_commands_reach_listed_hosts_through_the_proxy_and_nothing_else(
    tmp_path: Path, upstream: Upstream
) -> None:
    box = Box(tmp_path, network=[f"127.0.0.1:{upstream.port}"])
    before = frozenset(descendants(os.getpid()))
    fetch = """
import os, socket, urllib.request
from urllib.error import HTTPError
del os.environ["no_proxy"], os.environ["NO_PROXY"]
there = "127.0.0.1:%d"
print(urllib.request.urlopen(f"http://{there}/").read())
try:
    urllib.request.urlopen("http://example.com/")
except HTTPError as error:
    print(error.code, error.read())
try:
    socket.create_connection(there.split(":"), 2)
except OSError as error:
    print("direct:", error)
"""
    try:
        (box.work / "fetch.py").write_text(fetch % upstream.port)
        await box.run(f"{sys.executable} fetch.py")
        assert "b'hello'" in box.output
        assert "403 b'the sandbox refused the connection: example.com:80 is not" in box.output
        assert "direct: [Errno 111]" in box.output
        (refused,) = box.sandbox.take_refusals()
        assert refused.startswith("example.com:80 is not one of")
        folder = box.sandbox.temporary_folder or ""
        assert descendants(os.getpid(), before)
        # Commands under another policy of the session do not see its socket.
        await box.runner.close()
        box.runner = ProcessRunner(box.sandbox.with_policy(parse_policy("workspace")))
        await box.run('find "$TMPDIR/proxies"')
        assert box.output == f"{folder}/proxies\n"
    finally:
        await box.close()
    # The process that serves the proxy's port ends as well.
    await eventually(lambda: not descendants(os.getpid(), before))
