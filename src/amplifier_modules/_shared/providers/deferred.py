"""Requests that are answered later in a batch of the service, and what their answers cost."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from decimal import Decimal
from typing import Any, ClassVar, cast

from amplifier_core.llm_errors import ProviderUnavailableError
from amplifier_core.message_models import ChatRequest, ChatResponse, Message, Usage
from amplifier_modules._shared.http.client import Endpoint, encode_body
from amplifier_support.provider_batches import DeferredAnswer, DeferredRequest

PRICE_SHARE = Decimal("0.5")
"""Price of an answer in a batch, as a share of the usual price, at every vendor supported here."""

BATCH_WINDOW = 900.0
"""Seconds by which the clocks of this machine and a service may differ, including the time to send a batch."""

_NUMBER = re.compile(r"[0-9]{1,9}")
_OF_STREAMS = ("stream", "stream_options")


def deferred_request(
    provider: str,
    service: str,
    group: Mapping[str, str],
    request: ChatRequest,
    body: Mapping[str, Any],
) -> DeferredRequest:
    """A request to be answered in a batch, without its session.

    Raises:
        InvalidRequestError: The body cannot be written as JSON.
    """
    whole = {name: value for name, value in body.items() if name not in _OF_STREAMS}
    text = encode_body(whole, provider, request.model).decode()
    return DeferredRequest(service, json.dumps(group, sort_keys=True), text, "", read_step(request))


def read_step(request: ChatRequest) -> str:
    """A digest of the state of a conversation: the model's messages and its tools.

    Texts of the user are left out: they may contain the time, or a request to continue.
    """
    answers = [
        _content_and_calls(message) for message in request.messages if message.role == "assistant"
    ]
    text = json.dumps([request.model, [tool.name for tool in request.tools or ()], answers])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content_and_calls(message: Message) -> list[Any]:
    if isinstance(message.content, str):
        return [message.content]
    texts = [block.text for block in message.content if block.type == "text"]
    return [*texts, *(block.id for block in message.content if block.type == "tool_call")]


def at_batch_price(response: ChatResponse, answer: DeferredAnswer) -> ChatResponse:
    """The response that an answer contains, with the price of a batch."""
    usage = response.usage
    if isinstance(usage, Usage) and usage.cost_usd is not None:
        usage.cost_usd *= 0 if answer.is_counted else PRICE_SHARE
    response.metadata = {**(response.metadata or {}), "service_tier": "batch"}
    return response


class EndpointBatches(ABC):
    """The batches of one account; see `amplifier_support.provider_batches.ProviderBatches`.

    Args:
        endpoint: The service.
    """

    path: ClassVar[str]

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._provider = endpoint.provider
        self.service = endpoint.account

    async def cancel(self, batch_id: str) -> None:
        """Ask for the end of a batch."""
        await self._endpoint.post_json(f"{self.path}/{batch_id}/cancel", {})

    @abstractmethod
    def _answer(self, item: Mapping[str, Any]) -> DeferredAnswer | None:
        """The answer in a line of a file of answers; None if the request was cancelled."""

    async def _answers_in(self, path: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """The answers in a file, with the number of the request."""
        async with aclosing(self._items(path)) as items:
            async for item in items:
                number, answer = number_in(item.get("custom_id"), key), self._answer(item)
                if number is not None and answer is not None:
                    yield number, answer

    async def _items(self, path: str) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self._endpoint.get_lines(path)) as lines:
            async for line in lines:
                if line.strip():
                    yield _object_in(line, self._provider)


def _object_in(line: bytes, provider: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _broken(provider, "a line of answers that is not a JSON object")
    return cast("dict[str, Any]", value)


def text_in(answer: Mapping[str, Any], name: str, provider: str) -> str:
    """A required text in the service's description of a batch.

    Raises:
        ProviderUnavailableError: It is something else; base_url is probably wrong.
    """
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise _broken(provider, f"an object without '{name}' for a batch")
    return value


def number_in(custom_id: Any, key: str) -> int | None:
    """The number of a request in a batch; None if it is not of the batch with this key."""
    name, _, number = str(custom_id).rpartition("-")
    return int(number) if name == key and _NUMBER.fullmatch(number) else None


def _broken(provider: str, what: str) -> ProviderUnavailableError:
    text = f"{provider} sent {what}; check base_url"
    return ProviderUnavailableError(text, provider=provider, retryable=False)
