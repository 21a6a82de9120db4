"""Anthropic's Message Batches: many requests to the Messages API, answered within a day at half the price."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any

from amplifier_core.llm_errors import NotFoundError
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.providers.deferred import (
    BATCH_WINDOW,
    number_in,
    object_in,
    text_in,
)
from amplifier_modules._shared.providers.model_list import entries_in
from amplifier_support.fields import mapping_of
from amplifier_support.provider_batches import UNANSWERED, BatchState, DeferredAnswer, FoundBatch

_PATH = "/v1/messages/batches"
_PAGE = 100


class MessageBatches:
    """The batches of one account; see `amplifier_support.provider_batches.ProviderBatches`.

    Args:
        endpoint: The service.
    """

    max_requests = 100_000
    max_bytes = 256 * 1024 * 1024

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._provider = endpoint.provider
        self.service = endpoint.account

    async def submit(self, key: str, group: str, bodies: Sequence[bytes]) -> str:
        """Send a batch; each request has the key and its number as `custom_id`."""
        requests = (
            b'{"custom_id":"%b-%d","params":%b}' % (key.encode(), number, body)
            for number, body in enumerate(bodies)
        )
        content = b'{"requests":[%b]}' % b",".join(requests)
        answer = await self._endpoint.post_content(_PATH, content, headers=json.loads(group))
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
        batch = await self._endpoint.get_json(f"{_PATH}/{batch_id}")
        counts = _counts(batch)
        done = sum(counts.values()) - counts.get("processing", 0)
        return BatchState(text_in(batch, "processing_status", self._provider) == "ended", done)

    async def answers(self, batch_id: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """The answers of a batch that has ended."""
        async with aclosing(self._results(batch_id)) as results:
            async for item in results:
                number, answer = number_in(item.get("custom_id"), key), _answer(item.get("result"))
                if number is not None and answer is not None:
                    yield number, answer

    async def cancel(self, batch_id: str) -> None:
        """Ask for the end of a batch."""
        await self._endpoint.post_json(f"{_PATH}/{batch_id}/cancel", {})

    async def _sent_after(self, since: float) -> AsyncGenerator[dict[str, Any]]:
        """The batches of the account, the newest first."""
        params: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = await self._endpoint.get_json(_PATH, params=params)
            for batch in entries_in(page, self._provider):
                if (_seconds(batch) or since) < since:
                    return
                yield batch
            after = page.get("last_id")
            # A page with the same last entry would be requested forever.
            if not page.get("has_more") or after in (None, params.get("after_id")):
                return
            params["after_id"] = str(after)

    async def _has_key(self, batch_id: str, key: str) -> bool:
        # Answers of another batch may have been deleted.
        with suppress(NotFoundError):
            async with aclosing(self._results(batch_id)) as results:
                async for item in results:
                    return number_in(item.get("custom_id"), key) is not None
        return False

    async def _results(self, batch_id: str) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self._endpoint.get_lines(f"{_PATH}/{batch_id}/results")) as lines:
            async for line in lines:
                if line.strip():
                    yield object_in(line, self._provider)


def _answer(result: Any) -> DeferredAnswer | None:
    """The answer in a result; None if the request was cancelled."""
    found = mapping_of(result)
    kind = found.get("type")
    if kind == "succeeded" and isinstance(found.get("message"), dict):
        return DeferredAnswer(200, found["message"])
    if kind == "errored" and isinstance(found.get("error"), dict):
        return DeferredAnswer(None, found["error"])
    return None if kind == "canceled" else UNANSWERED


def _counts(batch: Mapping[str, Any]) -> dict[str, int]:
    given = mapping_of(batch.get("request_counts"))
    return {name: count for name, count in given.items() if type(count) is int}


def _seconds(batch: Mapping[str, Any]) -> float | None:
    """When a batch was sent, in seconds since the epoch."""
    try:
        return datetime.fromisoformat(str(batch.get("created_at"))).timestamp()
    except ValueError:
        return None
