"""The shared HTTP client, against real sockets on loopback."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.llm_errors import (
    ConfigurationError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    NetworkError,
    ProviderUnavailableError,
    RateLimitError,
    StreamError,
)
from amplifier_modules._shared.http import event_stream
from amplifier_modules._shared.http.client import Endpoint
from tests import support
from tests.support.llm_server import closed_port
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

TLS = Path(support.__file__).parent / "tls"


def endpoint(url: str, **options: Any) -> Endpoint:
    return Endpoint(url, {"x-key": "secret"}, provider="acme", **options)


def says(*parts: bytes) -> Handler:
    """A server that writes these bytes and then closes the connection."""

    async def handler(_: Request, write: Write) -> None:
        for part in parts:
            await write(part)
        raise Close

    return handler


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[Endpoint]:
    """An endpoint for a server; closed at the end."""
    async with raw_server(handler) as server:
        service = endpoint(server.url, **options)
        try:
            yield service
        finally:
            await service.aclose()


async def read_all(service: Endpoint, path: str = "/s", **options: Any) -> list[tuple[str, str]]:
    async with service.stream_sse(path, {}, model="m", **options) as stream:
        return [event async for event in stream]


# -- JSON ------------------------------------------------------------------------------------


async def test_lone_surrogates_are_replaced_and_pairs_joined():
    async with raw_server(says(answer(200, "{}"))) as server:
        service = endpoint(server.url)
        await service.post_json("/p", {"text": "a\ud83db \ud83d\ude00"})
        await service.aclose()
    assert server.requests[0].json() == {"text": "a\ufffdb 😀"}


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": object()}, {"a": {1, 2}}])
async def test_what_is_no_json_is_refused_before_anything_is_sent(body: dict[str, object]):
    service = endpoint("http://127.0.0.1:9")
    with pytest.raises(InvalidRequestError, match="cannot be written as JSON"):
        await service.post_json("/p", body, model="m")


@pytest.mark.parametrize("body", ["", "<html>", "[1]", "null", '{"a":'])
async def test_an_answer_that_is_no_object_is_named_and_not_retried(body: str):
    async with serving(says(answer(200, body))) as service:
        with pytest.raises(ProviderUnavailableError, match="other than a JSON object") as caught:
            await service.post_json("/p", {}, model="m")
    assert not caught.value.retryable


async def test_connections_are_kept_and_used_again():
    async def handler(request: Request, write: Write) -> None:
        if request.path == "/s":
            await write(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await write(STREAM_END)
        else:
            await write(answer(429 if request.path == "/bad" else 200, "{}"))

    async with raw_server(handler) as server:
        service = endpoint(server.url)
        await service.post_json("/p", {})
        assert await read_all(service) == [("message", "1")]
        async with service.stream_sse("/s", {}) as stream:
            assert await stream.read() == [("message", "1")]
            await stream.finish()
        for call in (lambda: service.post_json("/bad", {}), lambda: read_all(service, "/bad")):
            with pytest.raises(RateLimitError):
                await call()
        await service.get_json("/g")
        await service.aclose()
    assert server.connections == 1


async def test_leaving_a_stream_early_closes_its_connection():
    closed = asyncio.Event()

    async def handler(_: Request, write: Write) -> None:
        await write(STREAM_HEAD)
        try:
            while True:
                await write(chunk(b"data: 1\n\n"))
                await asyncio.sleep(0.005)
        finally:
            closed.set()

    async with serving(handler) as service:
        async with service.stream_sse("/s", {}) as stream:
            assert (await stream.read() or [])[0] == ("message", "1")
        await asyncio.wait_for(closed.wait(), 10)


async def test_finishing_an_endless_stream_gives_up():
    async def handler(_: Request, write: Write) -> None:
        await write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.Event().wait()

    async with serving(handler) as service, service.stream_sse("/s", {}) as stream:
        await stream.read()
        await stream.finish(patience=0.02)


async def test_an_endpoint_can_be_used_again_after_it_was_closed():
    async with raw_server(says(answer(200, "{}"))) as server:
        service = endpoint(server.url)
        await service.post_json("/p", {})
        await service.aclose()
        await service.post_json("/p", {})
        await service.aclose()
        await service.aclose()
    assert len(server.requests) == 2


async def test_a_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    async with raw_server(says(answer(200, "{}"))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        service = endpoint("http://service.invalid/base")
        await service.post_json("/p", {})
        await service.aclose()
    assert proxy.requests[0].path == "http://service.invalid/base/p"


async def test_an_unused_proxy_need_not_be_valid(monkeypatch: pytest.MonkeyPatch):
    async with raw_server(says(answer(200, "{}"))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("ALL_PROXY", "socks://desktop")
        service = endpoint("http://service.invalid")
        await service.post_json("/p", {})
        await service.aclose()
    assert len(proxy.requests) == 1


@pytest.mark.parametrize(
    "proxy", ["ftp://host", "socks://host", "http://[", "://", "http://h:99999"]
)
async def test_an_unusable_proxy_is_named(monkeypatch: pytest.MonkeyPatch, proxy: str):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigurationError) as caught:
        await endpoint("http://service.invalid").post_json("/p", {})
    assert str(caught.value) == (
        f"acme: the proxy {proxy} that the environment names cannot be used: it is not the "
        "address of a proxy; set HTTPS_PROXY to the address of an HTTP proxy"
    )


async def test_failures_of_a_proxy_name_it_without_the_password(monkeypatch: pytest.MonkeyPatch):
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
    async with raw_server(says(refusal)) as proxy:
        address = proxy.url.removeprefix("http://")
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:p@ss@{address}")
        with pytest.raises(NetworkError) as caught:
            await endpoint("https://service.invalid").post_json("/p", {})
    assert not caught.value.retryable
    assert str(caught.value) == (
        "acme at https://service.invalid could not be reached through the proxy "
        f"{proxy.url}: 407 Proxy Authentication Required"
    )
    with closed_port() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
        with pytest.raises(NetworkError) as caught:
            await endpoint("https://service.invalid").post_json("/p", {})
    assert caught.value.retryable
    through = f"through the proxy http://127.0.0.1:{port}: connection refused"
    assert str(caught.value).endswith(through)


# -- streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/html", "application/json; charset=utf-8"])
async def test_an_answer_that_cannot_be_a_stream_is_not_retried(kind: str):
    async with serving(says(answer(200, "{}", {"content-type": kind}))) as service:
        with pytest.raises(StreamError, match="event stream") as caught:
            await read_all(service)
    assert not caught.value.retryable


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [Cut, Close])
async def test_a_connection_lost_before_the_answer_is_a_network_error(stop: type[Exception]):
    async def handler(_: Request, write: Write) -> None:
        raise stop

    async with serving(handler) as service:
        for call in (lambda: service.post_json("/p", {}, model="m"), lambda: read_all(service)):
            with pytest.raises(NetworkError) as caught:
                await call()
            assert caught.value.retryable
            assert caught.value.provider == "acme"
            assert caught.value.model == "m"


@pytest.mark.parametrize("stop", [Cut, Close])
async def test_a_stream_that_breaks_off_is_a_stream_error(stop: type[Exception]):
    async def handler(_: Request, write: Write) -> None:
        await write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.01)
        raise stop

    async with serving(handler) as service:
        async with service.stream_sse("/s", {}, model="m") as stream:
            assert await stream.read() == [("message", "1")]
            with pytest.raises(StreamError) as caught:
                await stream.read()
        assert caught.value.retryable
        assert " cut the answer off: " in str(caught.value)
        assert "without an answer" not in str(caught.value)


async def test_silence_is_a_timeout_in_every_place():
    async def handler(request: Request, write: Write) -> None:
        if request.path == "/s":
            await write(STREAM_HEAD + chunk(b"data: 1\n\n"))
        if request.path == "/half":
            await write(answer(200, '{"a": 1}')[:-3])
        await asyncio.Event().wait()

    async with serving(handler, idle_timeout=0.3) as service:
        for call in (
            lambda: service.post_json("/p", {}),
            lambda: service.post_json("/half", {}),
            lambda: read_all(service),
        ):
            with pytest.raises(LLMTimeoutError, match=r"was silent for 0\.3 s"):
                await call()


async def test_a_time_limit_ends_what_is_not_silent():
    async def handler(request: Request, write: Write) -> None:
        await write(STREAM_HEAD)
        while True:
            await write(chunk(b": still here\n\n"))
            await asyncio.sleep(0.01)

    async with serving(handler) as service:
        with pytest.raises(LLMTimeoutError, match="time limit"):
            await read_all(service, timeout=0.1)
        with pytest.raises(LLMTimeoutError, match="time limit"):
            await service.post_json("/p", {}, timeout=0.1)


async def test_tls_to_a_plain_server_is_a_network_error():
    async def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        service = endpoint(f"https://127.0.0.1:{port}")
        with pytest.raises(NetworkError):
            await service.post_json("/p", {})
        await service.aclose()


async def test_a_certificate_that_is_not_trusted_is_not_tried_again():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        service = endpoint(f"https://127.0.0.1:{port}")
        with pytest.raises(NetworkError, match="certificate") as caught:
            await service.post_json("/p", {})
        await service.aclose()
    assert not caught.value.retryable


async def test_an_endless_error_body_is_cut():
    async def handler(_: Request, write: Write) -> None:
        await write(b"HTTP/1.1 500 no\r\nconnection: close\r\n\r\n")
        while True:
            await write(b"x" * 65536)

    async with serving(handler) as service:
        with pytest.raises(ProviderUnavailableError) as caught:
            await service.post_json("/p", {})
        assert len(str(caught.value)) < 3000


async def test_redirects_are_not_followed():
    elsewhere = "http://127.0.0.1:9/stolen"
    async with raw_server(says(answer(307, "", {"location": elsewhere}))) as server:
        service = endpoint(server.url)
        with pytest.raises(ConfigurationError, match=elsewhere):
            await service.post_json("/p", {})
        await service.aclose()
    assert len(server.requests) == 1


async def test_an_endless_event_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_stream, "EVENT_LIMIT", 100_000)

    async def handler(_: Request, write: Write) -> None:
        await write(STREAM_HEAD)
        while True:
            await write(chunk(b"data: " + b"x" * 5000 + b"\n"))

    async with serving(handler) as service:
        with pytest.raises(StreamError, match="larger than 100000 bytes") as caught:
            await read_all(service)
    assert not caught.value.retryable


async def test_an_address_that_cannot_be_read_is_a_matter_of_configuration():
    service = endpoint("http://127.0.0.1:port")
    with pytest.raises(ConfigurationError, match="check base_url"):
        await service.post_json("/p", {})


async def test_a_fault_of_the_program_stays_what_it_is():
    async def handler(_: Request, write: Write) -> None:
        await write(STREAM_HEAD + chunk(b"data: 1\n\n") + STREAM_END)

    async with serving(handler) as service:
        with pytest.raises(ZeroDivisionError):
            async with service.stream_sse("/s", {}):
                _ = 1 / 0


@pytest.mark.parametrize("url", ["", "example.invalid", "ftp://example.invalid", "/v1"])
def test_an_address_that_is_not_http_is_refused_at_once(url: str):
    with pytest.raises(ConfigurationError, match="must start with http"):
        Endpoint(url, {}, provider="acme")


@pytest.mark.parametrize("key", ["a\nb", "a\rb", "schlüssel", "a\0"])
def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(key: str):
    with pytest.raises(ConfigurationError, match="x-key") as caught:
        Endpoint("http://127.0.0.1", {"x-key": key}, provider="acme")
    assert key not in str(caught.value)


async def test_credentials_in_the_address_do_not_reach_messages():
    service = Endpoint("http://user:hunter2@127.0.0.1:9", {}, provider="acme")
    with pytest.raises(LLMError) as caught:
        await service.post_json("/p", {})
    assert "hunter2" not in str(caught.value)


# -- what it loads ---------------------------------------------------------------------------


def loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_client_is_not_loaded_before_the_first_request():
    modules = loaded(
        "from amplifier_modules._shared.http.client import Endpoint\n"
        "Endpoint('http://127.0.0.1', {}, provider='x')"
    )
    assert not modules & {"httpx", "httpcore", "anyio"}
