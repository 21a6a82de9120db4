"""The transports for the Messages API: HTTP by default, or the SDK's clients (`sdk.py`)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from amplifier_core.llm_errors import NotFoundError
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.providers.base import (
    BATCH_WINDOW,
    EndpointBatches,
    number_in,
    text_in,
)
from amplifier_modules.provider_anthropic.request import Prepared
from amplifier_modules.provider_anthropic.stream import StreamAssembly
from amplifier_support.fields import to_mapping
from amplifier_support.provider_batches import (
    UNANSWERED,
    BatchState,
    DeferredAnswer,
    FoundBatch,
    ProviderBatches,
)

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

        Raises:
            LLMError: The request failed, or its response is invalid or was cut off.
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
        self.batches: ProviderBatches | None = MessageBatches(endpoint)
        host = urlsplit(endpoint.base_url).hostname or ""
        self.is_anthropic = host == "anthropic.com" or host.endswith(".anthropic.com")

    async def stream(
        self, prepared: Prepared, assembly: StreamAssembly, timeout: float | None
    ) -> AsyncGenerator[Chunks]:
        body = {**prepared.body, "stream": True}
        opened = self._endpoint.stream_sse(
            MESSAGES, body, model=prepared.model, headers=prepared.headers, timeout=timeout
        )
        async with opened as answer:
            assembly.request_id = answer.headers.get("request-id")
            async with aclosing(assembly.relay(answer)) as reads:
                async for chunks in reads:
                    yield chunks

    async def post(self, path: str, prepared: Prepared) -> dict[str, Any]:
        return await self._endpoint.post_json(
            path, prepared.body, model=prepared.model, headers=prepared.headers
        )

    async def get(self, path: str, params: dict[str, str | int]) -> dict[str, Any]:
        return await self._endpoint.get_json(path, params=params)

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class MessageBatches(EndpointBatches):
    """Anthropic's Message Batches."""

    path = "/v1/messages/batches"
    max_requests = 100_000
    max_bytes = 256 * 1024 * 1024

    async def submit(self, key: str, group: str, bodies: Sequence[bytes]) -> str:
        """Send a batch; each request has the key and its number as `custom_id`."""
        requests = (
            b'{"custom_id":"%b-%d","params":%b}' % (key.encode(), number, body)
            for number, body in enumerate(bodies)
        )
        content = b'{"requests":[%b]}' % b",".join(requests)
        answer = await self._endpoint.post_content(self.path, content, headers=json.loads(group))
        return text_in(answer, "id", self._provider)

    async def find(
        self, key: str, number: int, since: float, others: Collection[str]
    ) -> FoundBatch | None:
        """The batch that was sent with the key.

        The service lists batches without their requests. Until one has ended it is recognized by its time
        and its number of requests.
        """
        unfinished: FoundBatch | None = None
        async for batch in self._sent_after(since - BATCH_WINDOW):
            batch_id = text_in(batch, "id", self._provider)
            created = _seconds(batch) or since
            if created > since + BATCH_WINDOW or sum(_counts(batch).values()) != number:
                continue
            if batch_id in others:
                continue
            if batch.get("processing_status") != "ended":
                unfinished = unfinished or FoundBatch(batch_id, is_certain=False)
            elif await self._has_key(batch_id, key):
                return FoundBatch(batch_id)
        return unfinished

    async def state(self, batch_id: str) -> BatchState:
        """Return the progress; the service counts answers only once all are there."""
        batch = await self._endpoint.get_json(f"{self.path}/{batch_id}")
        counts = _counts(batch)
        done = sum(counts.values()) - counts.get("processing", 0)
        return BatchState(text_in(batch, "processing_status", self._provider) == "ended", done)

    def answers(self, batch_id: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """The answers of a batch that has ended."""
        return self._answers_in(f"{self.path}/{batch_id}/results", key)

    async def _sent_after(self, since: float) -> AsyncGenerator[dict[str, Any]]:
        """The batches of the account, the newest first."""
        async with aclosing(self._list("after_id")) as pages:
            async for page in pages:
                for batch in page:
                    if (_seconds(batch) or since) < since:
                        return
                    yield batch

    async def _has_key(self, batch_id: str, key: str) -> bool:
        # Answers of another batch may have been deleted.
        with suppress(NotFoundError):
            async with aclosing(self._items(f"{self.path}/{batch_id}/results")) as items:
                async for item in items:
                    return number_in(item.get("custom_id"), key) is not None
        return False

    def _answer(self, item: Mapping[str, Any]) -> DeferredAnswer | None:
        result = to_mapping(item.get("result"))
        kind = result.get("type")
        if kind == "succeeded" and isinstance(result.get("message"), dict):
            return DeferredAnswer(200, result["message"])
        if kind == "errored" and isinstance(result.get("error"), dict):
            return DeferredAnswer(None, result["error"])
        return None if kind == "canceled" else UNANSWERED


def _counts(batch: Mapping[str, Any]) -> dict[str, int]:
    counts = to_mapping(batch.get("request_counts"))
    return {name: count for name, count in counts.items() if type(count) is int}


def _seconds(batch: Mapping[str, Any]) -> float | None:
    """When a batch was sent, in seconds since the epoch."""
    try:
        return datetime.fromisoformat(str(batch.get("created_at"))).timestamp()
    except ValueError:
        return None
