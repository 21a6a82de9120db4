"""Servers made with the SDK, as processes of ours and over HTTP: everything they can offer."""

import asyncio
import gzip
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_extras.tool_mcp import server
from tests.extras.tool_mcp.support import sdk, session, start_http
from tests.support.git_http import CERTIFICATE
from tests.support.raw_http import STREAM_HEAD, Cut, answer, chunk, raw_server
from tests.support.results import read_text, to_exception
from tests.support.waiting import eventually

TOOLS = ("add", "fail", "echo", "environment", "where", "media", "work", "sleep")
EXTRA = ("list_resources", "read_resource", "list_prompts", "get_prompt")


class HttpServer:
    """The server as a process of its own; `restart` ends it and starts another on the same port."""

    def __init__(self, *, is_stateless: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._is_stateless = is_stateless
        self.start()

    def start(self) -> None:
        self._process = start_http(self.port, self._is_stateless)
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < until, "the server does not start"
                time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE", 0.05)


@pytest.fixture(scope="module")
def http() -> Iterator[HttpServer]:
    running = HttpServer()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def stateless() -> Iterator[HttpServer]:
    running = HttpServer(is_stateless=True)
    yield running
    running.kill()


@pytest.fixture(params=["stdio", "http", "stateless"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The server in each of the ways it can be reached."""
    if request.param == "stdio":
        return sdk(required=True)
    return {"url": request.getfixturevalue(request.param).url, "required": True}


async def test_everything_a_server_offers(config: dict[str, Any], tmp_path: Path) -> None:
    async with session({"all": config}, {"session.dir": str(tmp_path)}) as mcp:
        assert mcp.tools == [f"mcp_all_{name}" for name in (*TOOLS, *EXTRA)]
        for name in mcp.tools:
            tool = mcp.coordinator.get("tools", name)
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
            assert tool.description
            assert tool.input_schema["type"] == "object"
        await check_calls(mcp)
        await check_media(mcp, tmp_path)
        await check_resources(mcp)
        await check_prompts(mcp)
        await check_notifications(mcp)
    if "command" in config:
        assert "noise on stderr" in (tmp_path / "tool-output" / "mcp-all.log").read_text()


async def check_calls(mcp: Any) -> None:
    assert read_text(await mcp.call("all_add", a=2, b=40)) == "42"
    failed = to_exception(await mcp.call("all_fail", why="because"))
    assert failed["type"] == "ToolError"
    assert "because" in failed["message"]
    assert "add" in to_exception(await mcp.call("all_add", a="x"))["message"]
    long = read_text(await mcp.call("all_echo", text="é" * 100_000))
    assert len(long.encode()) < 51_000
    [path] = re.findall(r"\[the result has 200000 bytes; its full text is in (.*)\]$", long)
    assert Path(path).read_text() == "é" * 100_000


async def check_media(mcp: Any, folder: Path) -> None:
    result = await mcp.call("all_media")
    assert result.success
    [text, image] = result.model_dump()["content"]
    assert image["source"]["media_type"] == "image/png"
    lines = text["text"].split("\n")
    assert lines[0] == "before"
    [audio] = re.findall(r"\[audio/wav, 9 bytes, saved as (.*)\]", lines[1])
    assert Path(audio).read_bytes() == b"RIFFsound"
    assert Path(audio).parent == folder / "tool-output"
    assert lines[2:] == ["[resource memo://1]", "the memo", "[resource memo://2: second]"]


async def check_resources(mcp: Any) -> None:
    listed = read_text(await mcp.call("all_list_resources"))
    assert "file://logo: logo, image/png, The logo." in listed
    assert "memo://{number}: memo, text/plain, A memo." in listed
    assert read_text(await mcp.call("all_read_resource", uri="memo://7")) == (
        "[resource memo://7]\nmemo 7"
    )
    logo = await mcp.call("all_read_resource", uri="file://logo")
    assert logo.model_dump()["content"][-1]["type"] == "image"
    assert (
        to_exception(await mcp.call("all_read_resource", uri="no://such"))["type"]
        == "ServerRefused"
    )


async def check_prompts(mcp: Any) -> None:
    assert read_text(await mcp.call("all_list_prompts")) == (
        "review(code, style?): Asks for a review."
    )
    filled = read_text(await mcp.call("all_get_prompt", name="review", arguments={"code": "x = 1"}))
    assert filled == "Asks for a review.\n[user]\nReview this in a kind way: x = 1"
    assert to_exception(await mcp.call("all_get_prompt", name="none"))["type"] == "ServerRefused"
    assert to_exception(await mcp.call("all_get_prompt", name=1))["type"] == "InvalidInput"


async def check_notifications(mcp: Any) -> None:
    assert read_text(await mcp.call("all_work", steps=2)) == "worked"
    await eventually(lambda: len(mcp.reported("mcp:progress")) == 2, 10)
    first, second = mcp.reported("mcp:progress")
    assert {key: first[key] for key in ("server", "tool", "progress", "total", "message")} == {
        "server": "all",
        "tool": "mcp_all_work",
        "progress": 1,
        "total": 2,
        "message": "step 1",
    }
    assert second["progress"] == 2
    await eventually(lambda: len(mcp.reported("mcp:log")) == 2, 10)
    assert [data["data"] for data in mcp.reported("mcp:log")] == ["did step 1", "did step 2"]
    assert mcp.reported("mcp:log")[0]["level"] == "info"


async def test_a_restarted_server_is_reconnected(tmp_path: Path) -> None:
    running = HttpServer()
    try:
        async with session({"far": {"url": running.url, "required": True}}) as mcp:
            assert read_text(await mcp.call("far_add", a=1, b=1)) == "2"
            running.kill()
            running.start()
            assert read_text(await mcp.call("far_add", a=1, b=2)) == "3"
            note = tmp_path / "note"
            call = asyncio.create_task(mcp.call("far_sleep", seconds=60, note=str(note)))
            await eventually(note.exists)
            running.kill()
            error = to_exception(await call)
            assert error["type"] == "CallLost"
            assert to_exception(await mcp.call("far_add", a=1, b=1))["type"] in (
                "NotConnected",
                "CallLost",
            )
            running.start()
            await eventually(lambda: len(mcp.reported("mcp:connected")) > 1)
            assert read_text(await mcp.call("far_add", a=2, b=2)) == "4"
    finally:
        running.kill()


class OldServer:
    """A server of the first protocols, which keeps sessions, and forgets them on request."""

    def __init__(self) -> None:
        self.session = 1
        self.calls: list[int] = []
        self.floods: Any = None

    async def __call__(self, request: Any, write: Any) -> None:
        if request.method != "POST":
            await write(answer(405, ""))
            return
        message = request.json()
        number, method = message.get("id"), message["method"]
        known = request.headers.get("mcp-session-id") == str(self.session)
        headers: dict[str, str] = {}
        if method == "initialize":
            headers["mcp-session-id"] = str(self.session)
            version = message["params"]["protocolVersion"]
            info = {"name": "old", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif not known:
            status = 404 if "mcp-session-id" in request.headers else 400
            error = {"code": -32600, "message": "Session not found"}
            await write(answer(status, json.dumps({"jsonrpc": "2.0", "id": None, "error": error})))
            return
        elif number is None:
            await write(answer(202, ""))
            return
        elif method == "tools/list":
            schema = {"type": "object"}
            result = {"tools": [{"name": n, "inputSchema": schema} for n in ("count", "cut")]}
        elif self.floods is not None:
            await self.floods(write)
            return
        elif message["params"]["name"] == "cut":
            self.calls.append(self.session)
            await write(STREAM_HEAD + chunk(b": begun\n\n"))
            raise Cut
        else:
            self.calls.append(self.session)
            result = {"content": [{"type": "text", "text": f"in session {self.session}"}]}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result})
        await write(answer(200, body, headers))


async def test_a_forgotten_session_is_started_again() -> None:
    old = OldServer()
    async with raw_server(old) as far:
        async with session({"old": {"url": far.url, "required": True}}) as mcp:
            assert read_text(await mcp.call("old_count")) == "in session 1"
            old.session = 2
            results = await asyncio.gather(*(mcp.call("old_count") for _ in range(3)))
            assert [read_text(result) for result in results] == ["in session 2"] * 3
        assert old.calls == [1, 2, 2, 2]


async def test_a_cut_off_response_leaves_the_effects_unknown() -> None:
    old = OldServer()
    async with raw_server(old) as far, session({"old": {"url": far.url}}) as mcp:
        error = to_exception(await mcp.call("old_cut"))
        assert error["type"] == "CallLost"
        assert "whether it took effect is unknown" in error["message"]
        assert read_text(await mcp.call("old_count")) == "in session 1"
        assert old.calls == [1, 1]
        assert mcp.reported("mcp:disconnected") == []


async def _compressed(write: Any) -> None:
    body = gzip.compress(b" " * 3_000_000)
    head = f"content-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    await write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n" + head + body)


async def _long(write: Any) -> None:
    head = b"content-type: application/json\r\ncontent-length: 3000000\r\n\r\n"
    await write(b"HTTP/1.1 200 X\r\n" + head + b" " * 3_000_000)


async def _long_event(write: Any) -> None:
    await write(STREAM_HEAD)
    for _ in range(30):
        await write(chunk(b"data: " + b"x" * 100_000 + b"\n"))


@pytest.mark.parametrize("flood", [_compressed, _long, _long_event])
async def test_an_oversized_response_is_given_up(
    flood: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amplifier_extras.tool_mcp import remote

    monkeypatch.setattr(remote, "MAX_MESSAGE", 2_000_000)
    old = OldServer()
    async with raw_server(old) as far, session({"old": {"url": far.url, "timeout": 15}}) as mcp:
        old.floods = flood
        error = to_exception(await mcp.call("old_count"))
        assert "time limit" not in error["message"]
        old.floods = None
        assert read_text(await mcp.call("old_count")) == "in session 1"


async def test_headers_are_sent() -> None:
    async def refuse(request: Any, write: Any) -> None:
        await write(answer(401, "{}"))

    async with raw_server(refuse) as far:
        headers = {"Authorization": "Bearer abc"}
        config = {"url": far.url, "headers": headers, "required": True}
        with pytest.raises(RuntimeError, match="required servers are not ready: far: ") as caught:
            async with session({"far": config}):
                pass
    assert "abc" not in str(caught.value)
    assert far.requests
    assert {request.headers["authorization"] for request in far.requests} == {"Bearer abc"}


async def test_certificates_are_those_of_the_environment_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    async with raw_server(OldServer(), tls) as far:
        config = {"old": {"url": far.url, "required": True}}
        with pytest.raises(RuntimeError, match="CERTIFICATE_VERIFY_FAILED"):
            async with session(config):
                pass
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        async with session(config) as mcp:
            assert read_text(await mcp.call("old_count")) == "in session 1"


async def test_two_servers_of_a_kind_can_be_used_together(http: HttpServer) -> None:
    servers = {"a": {"url": http.url}, "b": sdk()}
    async with session(servers) as mcp:
        results = await asyncio.gather(
            *(mcp.call(f"{name}_add", a=number, b=0) for name in "ab" for number in range(20))
        )
        assert [read_text(result) for result in results] == [
            str(n) for _ in "ab" for n in range(20)
        ]
        pid = read_text(await mcp.call("b_where")).split()[1]
        assert pid != str(os.getpid())
