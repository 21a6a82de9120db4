"""OpenAI's Batch API: a file of requests, answered within a day at half the price."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from amplifier_core.llm_errors import ProviderUnavailableError
from amplifier_modules._shared.providers.catalogue import entries_in
from amplifier_modules._shared.providers.deferred import (
    BATCH_WINDOW,
    EndpointBatches,
    text_in,
)
from amplifier_support.fields import to_mapping
from amplifier_support.provider_batches import UNANSWERED, BatchState, DeferredAnswer, FoundBatch

_PAGE = 100
_KEY = "amplifier_batch"
_ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
_FILES = ("output_file_id", "error_file_id")


class OpenAIBatches(EndpointBatches):
    """The batches of OpenAI's Batch API."""

    path = "/batches"
    max_requests = 50_000
    max_bytes = 200 * 1024 * 1024

    async def submit(self, key: str, group: str, bodies: Sequence[bytes]) -> str:
        """Upload the requests and send a batch of them, with the key in its metadata."""
        url: str = json.loads(group)["url"]
        lines = (
            b'{"custom_id":"%b-%d","method":"POST","url":"%b","body":%b}'
            % (key.encode(), number, url.encode(), body)
            for number, body in enumerate(bodies)
        )
        content, kind = _form(f"{key}.jsonl", b"\n".join(lines) + b"\n")
        headers = {"content-type": kind}
        file = await self._endpoint.post_content("/files", content, headers=headers)
        batch = await self._endpoint.post_json(
            self.path,
            {
                "input_file_id": text_in(file, "id", self._provider),
                "endpoint": url,
                "completion_window": "24h",
                "metadata": {_KEY: key},
            },
        )
        return text_in(batch, "id", self._provider)

    async def find(
        self, key: str, number: int, since: float, others: Collection[str]
    ) -> FoundBatch | None:
        """The batch that was sent with the key."""
        params: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = await self._endpoint.get_json(self.path, params=params)
            batches = entries_in(page, self._provider)
            for batch in batches:
                if to_mapping(batch.get("metadata")).get(_KEY) == key and batch["id"] not in others:
                    return FoundBatch(batch["id"])
                created = batch.get("created_at")
                if isinstance(created, int) and created < since - BATCH_WINDOW:
                    return None
            if not page.get("has_more") or not batches:
                return None
            params["after"] = batches[-1]["id"]

    async def state(self, batch_id: str) -> BatchState:
        """Return the progress."""
        batch = await self._endpoint.get_json(f"{self.path}/{batch_id}")
        status = text_in(batch, "status", self._provider)
        refused = _faults(batch) if status == "failed" else None
        return BatchState(status in _ENDED, _done(batch), refused)

    async def answers(self, batch_id: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """The answers of a batch that has ended: those of its output and those of its error file."""
        batch = await self._endpoint.get_json(f"{self.path}/{batch_id}")
        files = [file for name in _FILES if isinstance(file := batch.get(name), str)]
        if not files and _done(batch):
            text = f"{self._provider} shows no files of answers for batch {batch_id}"
            raise ProviderUnavailableError(text, provider=self._provider)
        for file_id in files:
            async with aclosing(self._answers_in(f"/files/{file_id}/content", key)) as answers:
                async for numbered in answers:
                    yield numbered

    def _answer(self, item: Mapping[str, Any]) -> DeferredAnswer | None:
        response = to_mapping(item.get("response"))
        status, body = response.get("status_code"), response.get("body")
        if type(status) is int and isinstance(body, dict):
            return DeferredAnswer(status, cast("dict[str, Any]", body))
        code = to_mapping(item.get("error")).get("code")
        return None if code == "batch_cancelled" else UNANSWERED


def _done(batch: Mapping[str, Any]) -> int:
    """Return the number of requests with an answer or an error."""
    counts = to_mapping(batch.get("request_counts"))
    values = (counts.get(name) for name in ("completed", "failed"))
    return sum(count for count in values if type(count) is int)


def _faults(batch: Mapping[str, Any]) -> str:
    """Why a batch failed as a whole."""
    data = to_mapping(batch.get("errors")).get("data")
    faults = cast("list[Any]", data) if isinstance(data, list) else []
    texts = [str(to_mapping(fault).get("message") or fault) for fault in faults]
    return "; ".join(dict.fromkeys(texts[:3])) or "no reason given"


def _form(name: str, content: bytes) -> tuple[bytes, str]:
    """A form that uploads a file for a batch, and its content type."""
    boundary = f"amplifier-{name.partition('.')[0]}"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    form = b"%b%b\r\n--%b--\r\n" % (head.encode(), content, boundary.encode())
    return form, f"multipart/form-data; boundary={boundary}"
