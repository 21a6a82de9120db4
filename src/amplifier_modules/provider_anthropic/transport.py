"""The transports for the Messages API: HTTP by default, or the SDK's clients (`sdk.py`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol
from urllib.parse import urlsplit

from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules.provider_anthropic.request import Prepared
from amplifier_modules.provider_anthropic.stream import StreamAssembly
from amplifier_support.provider_batches import ProviderBatches

Chunks = list[dict[str, Any]]

PROVIDER = "anthropic"
API_KEY = "ANTHROPIC_API_KEY"
AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
BASE_URL_VARIABLE = "ANTHROPIC_BASE_URL"
BASE_URL = "https://api.anthropic.com"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"


class Transport(Protocol):
    """A transport for the API.

    Attributes:
        is_anthropic: Whether it is Anthropic's own service, with its prices.
        batches: Its Message Batches; None if it has none.
    """

    @property
    def is_anthropic(self) -> bool: ...

    @property
    def batches(self) -> ProviderBatches | None: ...

    def stream(
        self, prepared: Prepared, assembly: StreamAssembly, timeout: float | None
    ) -> AsyncGenerator[Chunks]:
        """Send the request and yield the chunks that `assembly` makes of the response.

        Ends when the response does, or when `assembly` is complete or has met an error.

        Raises:
            LLMError: The request failed or its response was cut off.
        """
        ...

    async def post(self, path: str, prepared: Prepared) -> dict[str, Any]:
        """Send the body to another path of the API."""
        ...

    async def get(self, path: str, params: dict[str, str | int]) -> dict[str, Any]:
        """Read one page of a list."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class HTTPTransport:
    """The API itself, or a compatible service."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._batches: ProviderBatches | None = None
        host = urlsplit(endpoint.base_url).hostname or ""
        self.is_anthropic = host == "anthropic.com" or host.endswith(".anthropic.com")

    @property
    def batches(self) -> ProviderBatches | None:
        if self._batches is None:
            from amplifier_modules.provider_anthropic.batches import MessageBatches

            self._batches = MessageBatches(self._endpoint)
        return self._batches

    async def stream(
        self, prepared: Prepared, assembly: StreamAssembly, timeout: float | None
    ) -> AsyncGenerator[Chunks]:
        body = {**prepared.body, "stream": True}
        opened = self._endpoint.stream_sse(
            MESSAGES, body, model=prepared.model, headers=prepared.headers, timeout=timeout
        )
        async with opened as answer:
            assembly.request_id = answer.headers.get("request-id")
            progress = True
            while (events := await answer.read(progress=progress)) is not None:
                chunks = assembly.take(events)
                progress = bool(chunks)
                if chunks:
                    yield chunks
                if assembly.error is not None:
                    return
                if assembly.is_complete:
                    await answer.finish()
                    return

    async def post(self, path: str, prepared: Prepared) -> dict[str, Any]:
        return await self._endpoint.post_json(
            path, prepared.body, model=prepared.model, headers=prepared.headers
        )

    async def get(self, path: str, params: dict[str, str | int]) -> dict[str, Any]:
        return await self._endpoint.get_json(path, params=params)

    async def aclose(self) -> None:
        await self._endpoint.aclose()
