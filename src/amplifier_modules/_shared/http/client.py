"""One request to an HTTP model service, with every failure as one of the kernel's errors.

Retries, credentials and the meaning of bodies belong to the provider; this file handles
requests, JSON and time limits. The HTTP client is imported on the first request.

    endpoint = Endpoint("https://host", {"x-api-key": key}, provider="anthropic")
    answer = await endpoint.post_json("/v1/thing", {"a": 1}, model="m")
    async with endpoint.stream_sse("/v1/thing", {"stream": True}, model="m") as stream:
        async for event, data in stream:
            ...
    await endpoint.aclose()
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from amplifier_core.llm_errors import (
    AuthenticationError,
    ConfigurationError,
    InvalidRequestError,
    LLMError,
    ProviderUnavailableError,
    StreamError,
)
from amplifier_modules._shared.http.errors import (
    TransportFaults,
    error_for_response,
    unexpected_answer,
)
from amplifier_modules._shared.http.event_stream import EVENT_LIMIT, SSEStream
from amplifier_support.session_capabilities import Enter, Turn
from amplifier_support.text import without_login

if TYPE_CHECKING:
    import httpx

    from amplifier_modules._shared.http.connections import Answer, Client, HttpxClient

CONNECT_TIMEOUT = 10.0
IDLE_TIMEOUT = 300.0
_ERROR_BODY_LIMIT = 64 * 1024
_JSON_LIMIT = 16 * 1024 * 1024

_AT_ONCE = Turn()


async def enter_at_once(account: str, size: int) -> Turn:
    """Do not wait."""
    return _AT_ONCE


class Endpoint:
    """A service at one address, with its pool of kept-alive HTTP/1.1 connections.

    Proxies and certificate files are taken from the environment as in httpx, except that a proxy is
    never used for a server on this machine. Redirects are not followed, so that credentials are only
    sent to their own address.

    Args:
        base_url: Absolute http or https address; paths are appended to it.
        headers: Sent with every request, including credentials.
        provider: Name for error messages.
        enter: Waits until a request for an event stream may be sent.
        connect_timeout: Seconds to reach the service.
        idle_timeout: Longest time without progress, in seconds: while sending, until the head of
            the answer is complete, and between two parts of it. In an event stream only what its
            reader takes for progress counts (`SSEStream.read`), not each byte.
        address_from: What `base_url` was set with, for error messages.
        without_key: Why no key is sent, for the error of a service that requires one.

    Raises:
        ConfigurationError: The address is not absolute http(s), or a header cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        provider: str,
        enter: Enter = enter_at_once,
        connect_timeout: float = CONNECT_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
        address_from: str = "base_url",
        without_key: str = "",
    ) -> None:
        self.enter = enter
        self.base_url = base_url.rstrip("/")
        self.provider = provider
        self._without_key = without_key
        self.connect_timeout = connect_timeout
        self.idle_timeout = idle_timeout
        self._headers = dict(headers)
        self._client: Client | HttpxClient | None = None
        if not self.base_url.lower().startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{provider}: {address_from} must start with http:// or https://, got {base_url!r}",
                provider=provider,
            )
        for name, value in self._headers.items():
            if not value.isascii() or not value.isprintable():
                raise ConfigurationError(
                    f"{provider}: the value for the header {name} has a line break or another "
                    "character that cannot be sent; check the key for stray characters",
                    provider=provider,
                )

    @property
    def account(self) -> str:
        """The address and the account, without its key."""
        sent = json.dumps([self.base_url, sorted(self._headers.items())])
        return f"{self.base_url} {hashlib.sha256(sent.encode()).hexdigest()[:12]}"

    async def post_json(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Send a JSON object and return the JSON object of the answer.

        Args:
            path: Appended to the base address, with its leading slash.
            timeout: Limit in seconds for the whole exchange; None for twice the idle limit.

        Raises:
            LLMError: Any failure, as the subclass for its cause.
        """
        content = encode_body(body, self.provider, model)
        return await self._json("POST", path, model, timeout, content=content, headers=headers)

    async def post_content(
        self, path: str, content: bytes, *, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send bytes as they are, as JSON unless `headers` say otherwise; see `post_json`."""
        return await self._json("POST", path, content=content, headers=headers)

    async def get_json(
        self, path: str, *, params: Mapping[str, str | int] | None = None
    ) -> dict[str, Any]:
        """Get one JSON object. Arguments and errors as for `post_json`."""
        return await self._json("GET", path, params=params)

    async def get_lines(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the lines of a text of any length as they arrive. Errors as for `post_json`.

        Raises:
            StreamError: The connection breaks before the end.
        """
        with self.faults(None):
            response = await self._send("GET", path)
        rest = bytearray()
        try:
            with self.faults(None):
                await self.check(response, None)
            chunks = cast("AsyncGenerator[bytes]", response.aiter_bytes())
            async with aclosing(chunks):
                while True:
                    with self.faults(None, streaming=True):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        break
                    *lines, last = chunk.split(b"\n")
                    for line in lines:
                        yield bytes(rest + line)
                        rest.clear()
                    rest += last
                    if len(rest) > EVENT_LIMIT:
                        what = f"sent a line of more than {EVENT_LIMIT >> 20} MB"
                        raise self._unexpected(what, kind=StreamError)
            if rest:
                yield bytes(rest)
        finally:
            await response.aclose()

    @asynccontextmanager
    async def stream_sse(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[SSEStream]:
        """Send a JSON object and open the event stream of the answer.

        Leaving the context closes the connection, even in the middle of the stream.

        Args:
            timeout: Limit in seconds for the whole stream; None: only the idle limit applies.

        Raises:
            LLMError: As for `post_json`; `StreamError` if the connection breaks while reading.
        """
        content = encode_body(body, self.provider, model)
        turn = await self.enter(f"{self.account} {model or ''}", len(content))
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        with self.faults(model):
            accepting = {**(headers or {}), "accept": "text/event-stream"}
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._send("POST", path, content=content, headers=accepting)
            except BaseException:
                await turn.record_failure()
                raise
        stream = SSEStream(
            response, self.faults(model, streaming=True), deadline, self.idle_timeout
        )
        try:
            await turn.record_answer(response.status_code, response.headers)
            with self.faults(model):
                async with asyncio.timeout_at(deadline):
                    await self.check(response, model)
            self.check_event_stream(response, model)
            yield stream
        finally:
            await stream.aclose()

    async def aclose(self) -> None:
        """Close all connections. The endpoint may be used again and then opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _json(
        self,
        method: str,
        path: str,
        model: str | None = None,
        timeout: float | None = None,
        **parts: Any,
    ) -> dict[str, Any]:
        with self.faults(model):
            async with asyncio.timeout(2 * self.idle_timeout if timeout is None else timeout):
                response = await self._send(method, path, **parts)
                try:
                    await self.check(response, model)
                    raw = await _beginning(response, _JSON_LIMIT)
                finally:
                    await response.aclose()
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self.no_object(self.base_url + path, model)
        return cast("dict[str, Any]", answer)

    def no_object(self, url: str, model: str | None = None) -> LLMError:
        """The error for a successful answer that is not a JSON object."""
        return self._unexpected(f"answered {url} with something other than a JSON object", model)

    def _unexpected(
        self,
        what: str,
        model: str | None = None,
        status: int = 200,
        kind: type[LLMError] = ProviderUnavailableError,
    ) -> LLMError:
        return unexpected_answer(
            what, provider=self.provider, model=model, status=status, kind=kind
        )

    async def _send(self, method: str, path: str, **parts: Any) -> Answer | httpx.Response:
        """Send a request, of which the client knows the parts, and return with the answer's head."""
        if self._client is None:
            from amplifier_modules._shared.http.connections import open_client

            headers = {
                "user-agent": "amplifier",
                "content-type": "application/json",
                # A compressing proxy would delay events, and a few bytes could fill the memory.
                "accept-encoding": "identity",
                **self._headers,
            }
            limits = {"connect": self.connect_timeout, "idle": self.idle_timeout}
            self._client = open_client(self.base_url, headers, **limits, provider=self.provider)
        return await self._client.send(method, path, **parts)

    async def check(self, response: Answer | httpx.Response, model: str | None) -> None:
        """Raise the error for the head of an answer that is not a success, or is compressed."""
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            what = f"sent an answer with the encoding {encoding!r}, which was not asked for"
            raise self._unexpected(what, model, response.status_code)
        if 200 <= response.status_code < 300:
            return
        body = b""
        # The part that has arrived by then is enough.
        with suppress(TimeoutError):
            async with asyncio.timeout(self.idle_timeout):
                body = await _beginning(response, _ERROR_BODY_LIMIT)
        error = error_for_response(
            response.status_code,
            response.headers,
            body.decode("utf-8", "replace"),
            provider=self.provider,
            model=model,
        )
        if self._without_key and isinstance(error, AuthenticationError):
            error.args = (f"{error}; {self._without_key}",)
        raise error

    def check_event_stream(self, response: Answer | httpx.Response, model: str | None) -> None:
        """Raise the error for an answer that is no event stream."""
        # Some servers stream without a content type; reject only what cannot be a stream.
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("text/html", "application/json"):
            what = f"answered with {kind}, expected an event stream"
            raise self._unexpected(what, model, response.status_code, StreamError)

    def faults(self, model: str | None, *, streaming: bool = False) -> TransportFaults:
        return TransportFaults(
            provider=self.provider,
            model=model,
            url=without_login(self.base_url),
            connect_timeout=self.connect_timeout,
            idle_timeout=self.idle_timeout,
            streaming=streaming,
        )


async def _beginning(response: Answer | httpx.Response, limit: int) -> bytes:
    """The body up to `limit` bytes."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body[:limit])


def encode_body(body: Mapping[str, Any], provider: str, model: str | None) -> bytes:
    """The body as UTF-8 JSON; a lone surrogate, which no service accepts, becomes U+FFFD."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"the request to {provider} cannot be written as JSON: {error}",
            provider=provider,
            model=model,
        ) from error
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
