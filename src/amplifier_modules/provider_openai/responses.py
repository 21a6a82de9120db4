"""A client of the Responses API: one attempt at an answer, in the form providers give it.

The body of a request to the Responses API.

Nothing is stored at the service: the whole conversation is sent each time, including the reasoning
of earlier responses, which the service has encrypted. Items have no ids where the API allows it, so
that it looks nothing up.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from itertools import chain, takewhile
from typing import Any, cast

from amplifier_core.llm_errors import InvalidRequestError, StreamError
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    Degradation,
    Message,
    ReasoningBlock,
    Usage,
)
from amplifier_modules._shared.history import portable_id
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.http.event_stream import SSEStream, text_or_none
from amplifier_modules._shared.providers.base import (
    Chunk,
    add_lost,
    combine_degradations,
    estimate_lost,
)
from amplifier_modules._shared.providers.chat_completions import (
    image_url,
    wire_call_id,
    wire_response_format,
    wire_tool_choice,
    wire_tools,
)
from amplifier_modules._shared.providers.chat_stream import find_tool_calls, merge_deltas
from amplifier_modules._shared.providers.deferred import at_batch_price
from amplifier_modules._shared.providers.settings import first_given
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_modules.provider_openai.responses_stream import ResponsesStream, read_usage
from amplifier_support.provider_batches import DeferredAnswer

ENCRYPTED_REASONING = "reasoning.encrypted_content"

Item = dict[str, Any]


def wire_input(messages: Sequence[Message]) -> list[Item]:
    """The conversation as the API's `input`.

    Args:
        messages: Normalised: each call's result directly follows its message.
    """
    items: list[Item] = []
    for message in messages:
        if message.role in ("tool", "function"):
            items.append(_call_output(message))
        elif message.role == "assistant":
            items += _assistant_items(message)
        else:
            items.append({"role": message.role, "content": _input_content(message)})
    return items


def wire_options(request: ChatRequest) -> Item:
    """The options of a request that the API accepts, under its names, without the conversation."""
    body: Item = {}
    if request.tools:
        body["tools"] = [_tool(tool["function"]) for tool in wire_tools(request.tools)]
        if request.tool_choice is not None:
            choice, parallel = wire_tool_choice(request.tool_choice)
            body["tool_choice"] = _choice(choice)
            if not parallel:
                body["parallel_tool_calls"] = False
    wanted = wire_response_format(request)
    if wanted is not None:
        # The Chat Completions API nests the schema's description one level deeper.
        inner = wanted.pop("json_schema", {})
        body["text"] = {"format": {**wanted, **inner}}
    return body


def departures(request: ChatRequest, name: str) -> list[Degradation]:
    """Return the requested features that this API does not support."""
    if not request.stop:
        return []
    return [
        Degradation(
            requested="stop sequences",
            actual="none",
            reason=f"the Responses API of {name} takes none",
        )
    ]


def _tool(function: Mapping[str, Any]) -> Item:
    # Without it the API enforces the schema strictly, and refuses schemas that cannot be enforced.
    return {"type": "function", "strict": False, **function}


def _choice(choice: str | dict[str, Any]) -> str | Item:
    if isinstance(choice, str):
        return choice
    function = choice.get("function")
    if isinstance(function, Mapping):
        return {"type": "function", "name": cast("Mapping[str, Any]", function)["name"]}
    return choice


def _assistant_items(message: Message) -> list[Item]:
    if isinstance(message.content, str):
        return [{"role": "assistant", "content": message.content}]
    items: list[Item] = []
    for block in message.content:
        if block.type == "text":
            item: Item = {"role": "assistant", "content": block.text}
            if isinstance(phase := block.get("phase"), str):
                item["phase"] = phase
            items.append(item)
        elif block.type == "tool_call":
            items.append(
                {
                    "type": "function_call",
                    "call_id": wire_call_id(block.id),
                    "name": portable_id(block.name),
                    "arguments": json.dumps(block.input, ensure_ascii=False, separators=(",", ":")),
                }
            )
        elif isinstance(block, ReasoningBlock) and (reasoning := _reasoning(block)):
            items.append(reasoning)
    # Reasoning is refused without the item that follows it.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _reasoning(block: ReasoningBlock) -> Item | None:
    """The reasoning item as received; None if the service could not use it."""
    encrypted = block.get("encrypted_content")
    if not (encrypted or block.content):
        return None
    item: Item = {"type": "reasoning", "summary": block.summary}
    if isinstance(own_id := block.get("id"), str):
        item["id"] = own_id
    if block.content:
        item["content"] = block.content
    if encrypted:
        item["encrypted_content"] = encrypted
    return item


def _call_output(message: Message) -> Item:
    content = _input_content(message)
    return {
        "type": "function_call_output",
        "call_id": wire_call_id(message.tool_call_id or ""),
        "output": content,
    }


def _input_content(message: Message) -> str | list[Item]:
    if isinstance(message.content, str):
        return message.content
    parts: list[Item] = []
    for block in message.content:
        if block.type == "text":
            parts.append({"type": "input_text", "text": block.text})
        elif block.type == "image":
            parts.append(_image(block.source))
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _image(source: Mapping[str, Any]) -> Item:
    detail = source.get("detail")
    return {
        "type": "input_image",
        "image_url": image_url(source),
        "detail": detail if isinstance(detail, str) else "auto",
    }


_PATH = "/responses"
_BATCH_URL = "/v1/responses"
_LEAST_OUTPUT_TOKENS = 16
"""Minimum for a response; the API refuses less."""

Cost = Callable[[str, Usage, str | None], Decimal | None]
Defer = Callable[
    [ChatRequest, Mapping[str, Any], Mapping[str, str]], Awaitable[DeferredAnswer | None]
]


class ResponsesClient:
    """A client for one service.

    Args:
        name: What its provider is mounted as.
        endpoint: The service.
        config: The provider's settings.
        cost: What a call cost: (model, usage, service tier) -> US dollars.
        defer: Waits for the answer of a batch: (request, body, group) -> answer; None to ask now.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, config: OpenAIConfig, cost: Cost, defer: Defer
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._config = config
        self._cost = cost
        self._defer = defer
        self._without_reasoning: set[str] = set()

    async def attempt(
        self, request: ChatRequest, model: str, *, reasons: bool
    ) -> AsyncGenerator[Chunk]:
        """The chunks of an answer, the `ChatResponse` last.

        Args:
            request: Normalised.
            model: The model to ask.
            reasons: Whether the model may reason, so that its reasoning is returned.

        Raises:
            LLMError: The request failed or its response was cut off.
        """
        encrypted = reasons and model not in self._without_reasoning
        begun = False
        try:
            body = self._body(request, model, encrypted=encrypted)
            async with aclosing(self._stream(request, body)) as chunks:
                async for chunk in chunks:
                    begun = True
                    yield chunk
                return
        except InvalidRequestError as error:
            # Models that do not reason, and servers without encryption, refuse this.
            text = str(error).lower()
            if begun or not encrypted or not ("encrypted" in text or "include" in text):
                raise
        self._without_reasoning.add(model)
        body = self._body(request, model, encrypted=False)
        async with aclosing(self._stream(request, body)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _stream(self, request: ChatRequest, body: Mapping[str, Any]) -> AsyncGenerator[Chunk]:
        model: str = body["model"]
        names = {portable_id(tool.name): tool.name for tool in request.tools or ()}
        answer = ResponsesStream(provider=self._name, model=model, names=names)
        whole = await self._defer(request, body, {"url": _BATCH_URL, "model": model})
        if whole is not None:
            for piece in merge_deltas(answer.take_response(whole.body)):
                yield piece
            answer.response = {**answer.response, "service_tier": None}
            yield at_batch_price(self._response(request, answer, None), whole)
            return
        opened = self._endpoint.stream_sse(_PATH, body, model=model, timeout=request.timeout)
        async with opened as stream:
            progress = True
            try:
                while not answer.ended:
                    events = await stream.read(progress=progress)
                    if events is None:
                        raise self._unfinished(model)
                    read = takewhile(lambda data: data != "[DONE]", (data for _, data in events))
                    progress = False
                    for piece in merge_deltas(chain.from_iterable(map(answer.feed, read))):
                        progress = True
                        yield piece
            except BaseException as error:
                lost = estimate_lost(request, answer.written(), error)
                add_lost(self._usage(answer, model), self._with_cost(lost, answer, model))
                raise
            await stream.finish()
            yield self._response(request, answer, stream)

    def _unfinished(self, model: str) -> StreamError:
        return StreamError(
            f"{self._name} ended its answer without finishing it", provider=self._name, model=model
        )

    def _usage(self, answer: ResponsesStream, model: str) -> Usage | None:
        return self._with_cost(read_usage(answer.response.get("usage")), answer, model)

    def _with_cost(self, usage: Usage | None, answer: ResponsesStream, model: str) -> Usage | None:
        if usage is not None:
            tier = text_or_none(answer.response.get("service_tier"))
            usage.cost_usd = self._cost(model, usage, tier)
        return usage

    def _response(
        self, request: ChatRequest, answer: ResponsesStream, stream: SSEStream | None
    ) -> ChatResponse:
        final = answer.response
        model = text_or_none(final.get("model")) or request.model or ""
        metadata: dict[str, Any] = {
            "model": model,
            "provider": self._name,
            "stop_reason": answer.stop_reason,
            "request_id": stream.headers.get("x-request-id") if stream else None,
            "response_id": text_or_none(final.get("id")),
            "omitted_items": answer.omitted,
        }
        if answer.refused:
            refusals = [block["text"] for block in answer.content if block.get("refusal")]
            metadata["refusal"] = "".join(refusals)
        return ChatResponse(
            content=cast("Any", answer.content),
            tool_calls=find_tool_calls(answer.content) or None,
            usage=self._usage(answer, model),
            degradation=combine_degradations(departures(request, self._name)),
            finish_reason=answer.finish_reason,
            metadata={key: value for key, value in metadata.items() if value not in (None, [])},
        )

    def _body(self, request: ChatRequest, model: str, *, encrypted: bool) -> dict[str, Any]:
        config = self._config
        limit = first_given(request.max_output_tokens, config.max_tokens)
        reasoning = {
            "effort": first_given(request.reasoning_effort, config.reasoning_effort),
            "summary": config.reasoning_summary,
        }
        reasoning = {key: value for key, value in reasoning.items() if value is not None}
        optional = {
            "max_output_tokens": None if limit is None else max(limit, _LEAST_OUTPUT_TOKENS),
            "temperature": first_given(request.temperature, config.temperature),
            "top_p": first_given(request.top_p, config.top_p),
            "reasoning": reasoning or None,
            "include": [ENCRYPTED_REASONING] if encrypted else None,
        }
        return {
            "model": model,
            "input": wire_input(request.messages),
            "stream": True,
            "store": False,
            **{key: value for key, value in optional.items() if value is not None},
            **wire_options(request),
            **config.extra_body,
        }
