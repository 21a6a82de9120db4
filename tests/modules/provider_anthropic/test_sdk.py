"""Claude through the SDK's clients: the same body, the same message.

The other files run with `client: sdk`, too (`conftest.py`); here is what its client could do by itself, and
what is special about the clouds.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import re
import struct
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.llm_errors import (
    ConfigurationError,
    LLMError,
    RateLimitError,
    StreamError,
)
from amplifier_core.testing import MockCoordinator
from amplifier_modules._shared.pacing import pace_in
from amplifier_modules._shared.providers import base as provider_base
from amplifier_modules.provider_anthropic import mount
from amplifier_modules.provider_anthropic.request import known_models
from amplifier_support.installation import install_command
from amplifier_support.session_capabilities import PACE
from tests.bench import anthropic_clients
from tests.modules.provider_anthropic.support import HELLO, READ
from tests.support.llm.anthropic import Anthropic
from tests.support.llm_server import Reply, ScriptedLLM, Text, Thinking, ToolCall
from tests.support.raw_http import (
    STREAM_END,
    STREAM_HEAD,
    RawServer,
    Request,
    Write,
    answer,
    chunk,
    raw_server,
)

MODEL = "claude-haiku-4-5@20251001"
REPLY = Reply(
    blocks=[Thinking("hm", "sig"), Text("hello"), ToolCall("read", {"path": "x"}, id="t1")]
)
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "sig"},
    {"type": "text", "text": "hello"},
    {"type": "tool_call", "id": "t1", "name": "read", "input": {"path": "x"}},
]
VERTEX = {"transport": "vertex", "auth_token": "tok", "region": "global", "project_id": "p1"}
SDK = {"client": "sdk", "api_key": "k"}
BEDROCK = {"transport": "bedrock", "api_key": "key", "region": "eu-west-1"}


@pytest.fixture(autouse=True)
def _no_long_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_base, "FIRST_DELAY", 0.001)


def events() -> list[bytes]:
    from tests.support.llm.http import Request as LLMRequest

    request = LLMRequest("POST", "/v1/messages", "", {}, b"{}")
    request.body = {"model": "claude-haiku-4-5-20251001"}
    return Anthropic().events(REPLY, request)


@asynccontextmanager
async def cloud(server: RawServer, **config: Any) -> AsyncGenerator[Any]:
    coordinator = MockCoordinator()
    settings = {"base_url": server.url, "model": MODEL, "prompt_caching": False, **config}
    cleanup = await mount(coordinator, settings)
    assert cleanup is not None
    try:
        yield coordinator.get("providers", "anthropic")
    finally:
        await cleanup()


async def speak_vertex(_: Request, write: Write) -> None:
    await write(STREAM_HEAD)
    for event in events():
        await write(chunk(event))
    await write(STREAM_END)


async def test_vertex_answers_like_the_api():
    async with raw_server(speak_vertex) as server, cloud(server, **VERTEX) as provider:
        chunks = [item async for item in provider.stream_complete({**HELLO, "tools": [READ]})]
    response = chunks[-1]
    assert [block.model_dump(exclude_none=True) for block in response.content] == BLOCKS
    assert response.finish_reason == "tool_calls"
    assert response.usage.input_tokens == 10
    assert response.usage.cost_usd is None  # the clouds have prices of their own
    assert [c["type"] for c in chunks[:2]] == ["content_block_start", "content_block_delta"]


async def test_vertex_is_sent_the_same_body():
    request = {**HELLO, "tools": [READ], "temperature": 0.5, "max_output_tokens": 50}
    config = {**VERTEX, "beta": "a,b"}
    async with raw_server(speak_vertex) as server, cloud(server, **config) as provider:
        await provider.complete(request)
    (sent,) = server.requests
    where = "projects/p1/locations/global/publishers/anthropic/models/claude-haiku-4-5@20251001"
    assert sent.path == f"/{where}:streamRawPredict"
    assert sent.headers["authorization"] == "Bearer tok"
    assert sent.headers["anthropic-beta"] == "a,b"
    assert sent.json() == {
        "anthropic_version": "vertex-2023-10-16",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "tools": [READ],
        "temperature": 0.5,
        "stream": True,
    }


async def test_vertex_counts_tokens():
    async def count(_: Request, write: Write) -> None:
        await write(answer(200, '{"input_tokens": 42}'))

    async with raw_server(count) as server, cloud(server, **VERTEX) as provider:
        assert await provider.count_tokens({**HELLO, "tools": [READ]}) == 42
    assert server.requests[0].path.endswith("/count-tokens:rawPredict")
    assert server.requests[0].json()["tools"] == [READ]


async def test_one_owner_of_retries_there_too():
    async def refuse(_: Request, write: Write) -> None:
        await write(answer(429, '{"error": {"message": "slow"}}', {"retry-after-ms": "1"}))

    async with raw_server(refuse) as server, cloud(server, **VERTEX, max_retries=2) as provider:
        with pytest.raises(RateLimitError, match="slow") as caught:
            await provider.complete(HELLO)
    assert caught.value.retry_after == 0.001
    assert len(server.requests) == 3


async def test_the_known_models_stand_in_for_a_list():
    async with raw_server(speak_vertex) as server, cloud(server, **VERTEX) as provider:
        assert [m.id for m in await provider.list_models()] == [m.id for m in known_models()]
    assert server.requests == []


async def test_a_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CLOUD_ML_REGION", raising=False)
    with pytest.raises(ConfigurationError, match="region"):
        await mount(MockCoordinator(), {"transport": "vertex", "auth_token": "tok"})


@pytest.mark.parametrize(
    ("config", "package"), [(BEDROCK, "botocore"), ({"transport": "vertex"}, "google.auth")]
)
async def test_a_missing_package_is_named(config: dict[str, str], package: str):
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(package):
            pytest.skip(f"{package} is installed")
    command = f"install it with: {install_command(config['transport'])}"
    with pytest.raises(ConfigurationError, match=re.escape(command)):
        await mount(MockCoordinator(), config)


# -- the SDK at the API itself -------------------------------------------------------------------


async def test_nothing_follows_a_redirect_with_the_key():
    async def redirect(_: Request, write: Write) -> None:
        await write(answer(307, "", {"location": "http://127.0.0.1:9/stolen"}))

    async with raw_server(redirect) as server, cloud(server, **SDK) as provider:
        for call in (provider.complete, provider.count_tokens):
            with pytest.raises(ConfigurationError, match="redirects are not followed"):
                await call(HELLO)
    assert len(server.requests) == 2


async def test_one_credential_and_no_proxy_for_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "other")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with raw_server(speak_vertex) as server, cloud(server, **SDK) as provider:
        await provider.complete(HELLO)
    (sent,) = server.requests
    # Releases of the SDK differ in the header; a service refuses both.
    credentials = [sent.headers.get(name) for name in ("x-api-key", "authorization")]
    assert [value for value in credentials if value] in (["k"], ["Bearer k"])
    assert sent.headers["accept-encoding"] == "identity"
    monkeypatch.setenv("HTTPS_PROXY", "gopher://x")
    with pytest.raises(ConfigurationError, match="set HTTPS_PROXY"):
        await mount(MockCoordinator(), {**SDK, "base_url": "https://api.example.com"})


async def test_the_pace_of_the_key_is_kept(tmp_path: Path):
    async def limited(_: Request, write: Write) -> None:
        await write(answer(429, "{}", {"retry-after-ms": "1"}))

    async with raw_server(limited) as server:
        coordinator = MockCoordinator()
        PACE.register(coordinator, pace_in(str(tmp_path)))
        config = {**SDK, "base_url": server.url, "max_retries": 0}
        cleanup = await mount(coordinator, config)
        assert cleanup is not None
        with pytest.raises(RateLimitError):
            await coordinator.get("providers", "anthropic").complete(HELLO)
        await cleanup()
    assert list(tmp_path.iterdir())


async def test_an_answer_that_is_no_event_stream_is_refused():
    async def page(_: Request, write: Write) -> None:
        await write(answer(200, "<html>", {"content-type": "text/html"}))

    async with raw_server(page) as server, cloud(server, **SDK, max_retries=0) as provider:
        with pytest.raises(StreamError, match="expected an event stream; check base_url"):
            await provider.complete(HELLO)
        with pytest.raises(LLMError, match="check base_url"):
            await provider.list_models()


@pytest.mark.thorough
def test_the_costs_of_the_clients_are_measured(capsys: pytest.CaptureFixture[str]):
    anthropic_clients.main(deltas=200, processes=1)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| `builtin`",
        "| the same over httpx",
        "| `sdk`",
    ]


# -- Bedrock, whose events come in frames of their own -------------------------------------------


def frame(event: bytes) -> bytes:
    """One event of the answer as Amazon's event stream carries it."""
    data = event.partition(b"data: ")[2].strip()
    payload = json.dumps({"bytes": base64.b64encode(data).decode()}).encode()
    headers = b""
    for name, value in (
        (":event-type", "chunk"),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ):
        headers += bytes([len(name)]) + name.encode() + b"\x07"
        headers += struct.pack(">H", len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


async def speak_bedrock(_: Request, write: Write) -> None:
    head = STREAM_HEAD.replace(b"text/event-stream", b"application/vnd.amazon.eventstream")
    await write(head)
    for event in events():
        await write(chunk(frame(event)))
    await write(STREAM_END)


async def test_bedrock_answers_like_the_api():
    pytest.importorskip("botocore")
    async with raw_server(speak_bedrock) as server, cloud(server, **BEDROCK) as provider:
        response = await provider.complete({**HELLO, "tools": [READ]})
    assert [block.model_dump(exclude_none=True) for block in response.content] == BLOCKS
    (sent,) = server.requests
    assert sent.path.endswith("/invoke-with-response-stream")
    assert sent.headers["authorization"] == "Bearer key"
    assert sent.json()["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    ]


@pytest.mark.parametrize("is_for_it", [True, False])
async def test_headers_of_the_environment_go_to_its_address_only(
    monkeypatch: pytest.MonkeyPatch, is_for_it: bool
):
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Gateway: secret\nX-Team: blue")
    async with ScriptedLLM([REPLY]) as server:
        intended = server.base_url if is_for_it else "https://gateway.example"
        monkeypatch.setenv("ANTHROPIC_BASE_URL", intended)
        coordinator = MockCoordinator()
        cleanup = await mount(coordinator, {**SDK, "base_url": server.base_url})
        assert cleanup is not None
        await coordinator.get("providers", "anthropic").complete(HELLO)
        await cleanup()
    sent = {"x-gateway", "x-team"} & server.requests[-1].headers.keys()
    assert sent == ({"x-gateway", "x-team"} if is_for_it else set())


async def test_headers_of_the_environment_do_not_go_to_a_cloud_of_another_address(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Gateway: secret")
    async with raw_server(speak_vertex) as server, cloud(server, **VERTEX) as provider:
        await provider.complete(HELLO)
    assert "x-gateway" not in str(server.requests[0].headers).lower()
