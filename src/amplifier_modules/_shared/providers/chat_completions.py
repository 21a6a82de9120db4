"""A client of the Chat Completions API, for every compatible server.

A provider of such a server sets its address and facts about its models; requests, streams, and the
differences between servers are handled here. If a server rejects a parameter that another requires,
the request is sent again without it and the server's dialect is remembered; that is not a retry,
since a retry sends the same request again.

Requests in the Chat Completions format, which many servers speak and few speak the same.

Takes a normalised `ChatRequest` and writes what all of them accept: text as plain strings where
there is nothing else, images as data URLs, tool results as text with their images in a user message
behind them, names and ids in the letters and lengths the API allows.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain, takewhile
from typing import Any, cast

from amplifier_core.llm_errors import InvalidRequestError, LLMTimeoutError, StreamError
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    Degradation,
    Message,
    ToolSpec,
    Usage,
)
from amplifier_modules._shared.history import portable_id
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.http.event_stream import SSEStream
from amplifier_modules._shared.providers.base import (
    Chunk,
    HTTPProvider,
    add_lost,
    combine_degradations,
    estimate_lost,
)
from amplifier_modules._shared.providers.chat_stream import (
    FINISH_REASONS,
    ChatStream,
    find_tool_calls,
    merge_deltas,
    read_usage,
)
from amplifier_modules._shared.providers.deferred import at_batch_price
from amplifier_modules._shared.providers.settings import HTTPProviderConfig, first_given
from amplifier_support.fields import to_mapping

_MAX_ID = 40
_PERSON = re.compile(r"[^\s<|\\/>]{1,64}")
_IMAGES_FOLLOW = "[the images of this result are in the next message]"


def wire_messages(messages: Sequence[Message], *, developer_role: bool) -> list[dict[str, Any]]:
    """The conversation as the API's `messages`.

    Args:
        messages: Normalised: each call is answered directly behind its message.
        developer_role: The server knows the role ``developer``; else it becomes ``system``.
    """
    wire: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and pending:
            wire.append({"role": "user", "content": pending})
            pending = []
        if message.role in ("tool", "function"):
            wire.append(_tool_message(message, pending))
        elif message.role == "assistant":
            wire.append(_assistant_message(message))
        elif message.role == "user":
            wire.append(_user_message(message))
        else:
            role = message.role if developer_role else "system"
            wire.append({"role": role, "content": _join_text(message.content)})
    if pending:
        wire.append({"role": "user", "content": pending})
    return wire


def wire_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """The tools as the API's `tools`."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def wire_tool_choice(choice: str | Mapping[str, Any]) -> tuple[str | dict[str, Any], bool]:
    """The API's `tool_choice`, and whether parallel calls are allowed.

    Understood are the words ``auto``, ``none``, ``required`` and ``any``, the name of a tool, and
    both vendors' mappings (``{"type": "function", "function": {"name": …}}`` and
    ``{"type": "tool", "name": …, "disable_parallel_tool_use": …}``).
    """
    if isinstance(choice, str):
        return _choice_word(choice), True
    parallel = not choice.get("disable_parallel_tool_use")
    kind = str(choice.get("type", "auto"))
    name = (to_mapping(choice.get("function")) or choice).get("name")
    if kind in ("tool", "function") and isinstance(name, str):
        return {"type": "function", "function": {"name": portable_id(name)}}, parallel
    return (_choice_word(kind) if kind in _WORDS else dict(choice)), parallel


def wire_response_format(request: ChatRequest) -> dict[str, Any] | None:
    """The API's `response_format`; None for free text."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json":
        return {"type": "json_object"}
    given = wanted.json_schema
    # Some callers hand over the API's own wrapping of name and schema.
    inner = given.get("schema")
    wrapped = isinstance(inner, Mapping) and isinstance(given.get("name"), str)
    schema: dict[str, Any] = dict(cast("Mapping[str, Any]", inner)) if wrapped else given
    name = str(given["name"] if wrapped else schema.get("title") or "response")
    described: dict[str, Any] = {"name": portable_id(name), "schema": schema}
    strict = wanted.strict if wanted.strict is not None else given.get("strict")
    if wrapped and isinstance(strict, bool):
        described["strict"] = strict
    elif wanted.strict is not None:
        described["strict"] = wanted.strict
    return {"type": "json_schema", "json_schema": described}


def wire_call_id(call_id: str) -> str:
    """`call_id` in the letters and length the API allows; equal ids stay equal."""
    portable = portable_id(call_id)
    if len(portable) <= _MAX_ID:
        return portable
    return f"{portable[: _MAX_ID - 9]}_{_digest(call_id)}"


_WORDS = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


def _choice_word(word: str) -> str | dict[str, Any]:
    known = _WORDS.get(word)
    return known or {"type": "function", "function": {"name": portable_id(word)}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _function(tool: ToolSpec) -> dict[str, Any]:
    schema = tool.parameters or {}
    if schema.get("type") != "object":
        schema = {**schema, "type": "object"}
    if "properties" not in schema:
        schema = {**schema, "properties": {}}
    function: dict[str, Any] = {"name": portable_id(tool.name), "parameters": schema}
    if tool.description:
        function["description"] = tool.description
    if tool.get("strict") is not None:
        function["strict"] = tool.get("strict")
    return function


def _user_message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if isinstance(message.content, str):
        content: str | list[dict[str, Any]] = message.content
    else:
        for block in message.content:
            if block.type == "text":
                parts.append({"type": "text", "text": block.text})
            elif block.type == "image":
                parts.append(_image_part(block.source))
        only_text = all(part["type"] == "text" for part in parts)
        content = "\n".join(part["text"] for part in parts) if only_text else parts
    wire: dict[str, Any] = {"role": "user", "content": content}
    if message.name and _PERSON.fullmatch(message.name):
        wire["name"] = message.name
    return wire


def _assistant_message(message: Message) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    calls = [
        {
            "id": wire_call_id(block.id),
            "type": "function",
            "function": {
                "name": portable_id(block.name),
                "arguments": json.dumps(block.input, ensure_ascii=False, separators=(",", ":")),
            },
        }
        for block in message.content
        if block.type == "tool_call"
    ]
    text = _join_text(message.content)
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _tool_message(message: Message, images: list[dict[str, Any]]) -> dict[str, Any]:
    text = _join_text(message.content)
    if not isinstance(message.content, str):
        shown = [_image_part(block.source) for block in message.content if block.type == "image"]
        if shown:
            text = f"{text}\n{_IMAGES_FOLLOW}" if text else _IMAGES_FOLLOW
            images.append({"type": "text", "text": f"[images from {message.name or 'a tool'}]"})
            images += shown
    return {
        "role": "tool",
        "tool_call_id": wire_call_id(message.tool_call_id or ""),
        "content": text,
    }


def _join_text(content: str | Sequence[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if block.type == "text")


def _image_part(source: Mapping[str, Any]) -> dict[str, Any]:
    image: dict[str, Any] = {"url": image_url(source)}
    if isinstance(source.get("detail"), str):
        image["detail"] = source["detail"]
    return {"type": "image_url", "image_url": image}


def image_url(source: Mapping[str, Any]) -> str:
    """The URL of an image, with the image in it if it has none of its own."""
    if isinstance(url := source.get("url"), str):
        return url
    return f"data:{source.get('media_type') or 'image/png'};base64,{source.get('data', '')}"


_PATH = "/chat/completions"
_BATCH_URL = "/v1/chat/completions"
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Taste:
    """The abilities of one model of one server.

    Attributes:
        max_tokens: Name of the parameter that limits the answer.
        stream_usage: It takes `stream_options`.
        effort_with_tools: Reasoning effort to send with tools where the request names none.
    """

    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    effort_with_tools: str | None = None


class ChatCompletionsProvider(HTTPProvider):
    """A provider of one server (Provider Contract, Protocol Definition).

    Args:
        name: What it is mounted as.
        config: Its settings.
        coordinator: Its hooks get events of calls and retries; None for no events.
        extra_body: Merged into every request, overriding its values.
        reasoning_effort: For requests that name none.
        developer_role: The server knows the role ``developer``.
    """

    def __init__(
        self,
        name: str,
        config: HTTPProviderConfig,
        coordinator: Any = None,
        *,
        extra_body: Mapping[str, Any] | None = None,
        reasoning_effort: str | None = None,
        developer_role: bool = False,
    ) -> None:
        super().__init__(name, config, coordinator)
        self._defaults = config
        self._extra_body = dict(extra_body or {})
        self._reasoning_effort = reasoning_effort
        self._developer_role = developer_role
        self._learned: dict[str, Taste] = {}

    @abstractmethod
    async def _open_endpoint(self, request: ChatRequest) -> Endpoint:
        """The server for a request, ready to be asked. Raises `LLMError`."""

    async def _choose_model(self, request: ChatRequest) -> str:
        """The model to ask for. Raises `LLMError` where there is none."""
        return request.model or self.model

    def _taste(self, model: str) -> Taste:
        """Return the server's expected abilities for a model, until it says otherwise."""
        return Taste()

    def _cost(self, model: str, usage: Usage, service_tier: str | None) -> Decimal | None:
        """Return the cost of a call in US dollars; None if unknown."""
        return None

    # -- one attempt ---------------------------------------------------------------------------

    async def _attempt(self, request: ChatRequest) -> AsyncGenerator[Chunk]:
        endpoint = await self._open_endpoint(request)
        model = await self._choose_model(request)
        tried: set[Taste] = set()
        begun = False
        while True:
            taste = self._learned.get(model) or self._taste(model)
            tried.add(taste)
            body = self._body(request, model, taste)
            try:
                async with aclosing(self._stream(endpoint, request, body)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except InvalidRequestError as error:
                learned = None if begun else _lesson(str(error), body, taste)
                if learned is None or learned in tried:
                    raise
                self._learned[model] = learned

    async def _stream(
        self, endpoint: Endpoint, request: ChatRequest, body: dict[str, Any]
    ) -> AsyncGenerator[Chunk]:
        model: str = body["model"]
        names = {portable_id(tool.name): tool.name for tool in request.tools or ()}
        answer = ChatStream(provider=self._name, model=model, names=names)
        whole = await self._batch_answer(request, body, {"url": _BATCH_URL, "model": model})
        if whole is not None:
            for piece in merge_deltas([*answer.feed(json.dumps(whole.body)), *answer.close()]):
                yield piece
            if answer.finish_reason is None:
                raise self._unfinished(request)
            answer.service_tier = None
            yield at_batch_price(self._response(request, body, answer, None), whole)
            return
        async with endpoint.stream_sse(_PATH, body, model=model, timeout=request.timeout) as stream:
            progress = True
            try:
                while (events := await stream.read(progress=progress)) is not None:
                    texts = [data for _, data in events]
                    read = takewhile(lambda data: data != _DONE, texts)
                    progress = False
                    for piece in merge_deltas(chain.from_iterable(map(answer.feed, read))):
                        progress = True
                        yield piece
                    if _DONE in texts:
                        await stream.finish()
                        break
                if answer.finish_reason is None:
                    raise self._unfinished(request)
            except BaseException as error:
                # With the finish reason the answer is whole; only its accounting is lost.
                is_whole = answer.finish_reason is not None
                if not (is_whole and isinstance(error, (StreamError, LLMTimeoutError))):
                    lost = estimate_lost(request, answer.written(), error)
                    add_lost(self._usage(answer), self._with_cost(lost, answer))
                    raise
            for piece in answer.close():
                yield piece
            yield self._response(request, body, answer, stream)

    def _usage(self, answer: ChatStream) -> Usage | None:
        return self._with_cost(read_usage(answer.usage), answer)

    def _with_cost(self, usage: Usage | None, answer: ChatStream) -> Usage | None:
        if usage is not None:
            usage.cost_usd = self._cost(answer.model or "", usage, answer.service_tier)
        return usage

    def _response(
        self,
        request: ChatRequest,
        body: dict[str, Any],
        answer: ChatStream,
        stream: SSEStream | None,
    ) -> ChatResponse:
        content = answer.content()
        calls = find_tool_calls(content)
        stopped = cast("str", answer.finish_reason)
        finish = "content_filter" if answer.refusal() else FINISH_REASONS.get(stopped, "stop")
        if calls and finish == "stop":
            finish = "tool_calls"
        metadata: dict[str, Any] = {
            "model": answer.model,
            "stop_reason": stopped,
            "provider": self._name,
        }
        request_id = (stream and stream.headers.get("x-request-id")) or answer.id
        if request_id:
            metadata["request_id"] = request_id
        if refusal := answer.refusal():
            metadata["refusal"] = refusal
        return ChatResponse(
            content=cast("Any", content),
            tool_calls=calls or None,
            usage=self._usage(answer),
            degradation=combine_degradations(self._degradations(request, body)),
            finish_reason=finish,
            metadata=metadata,
        )

    # -- the request ---------------------------------------------------------------------------

    def _body(self, request: ChatRequest, model: str, taste: Taste) -> dict[str, Any]:
        defaults = self._defaults
        body: dict[str, Any] = {
            "model": model,
            "messages": wire_messages(request.messages, developer_role=self._developer_role),
            "stream": True,
        }
        if taste.stream_usage:
            body["stream_options"] = {"include_usage": True}
        optional = {
            taste.max_tokens: first_given(request.max_output_tokens, defaults.max_tokens),
            "temperature": first_given(request.temperature, defaults.temperature),
            "top_p": first_given(request.top_p, defaults.top_p),
            "stop": request.stop or None,
            "response_format": wire_response_format(request),
            "reasoning_effort": self._effort(request, taste),
        }
        body |= {key: value for key, value in optional.items() if value is not None}
        if request.tools:
            body["tools"] = wire_tools(request.tools)
            if request.tool_choice is not None:
                choice, parallel = wire_tool_choice(request.tool_choice)
                body["tool_choice"] = choice
                if not parallel:
                    body["parallel_tool_calls"] = False
        return body | self._extra_body

    def _effort(self, request: ChatRequest, taste: Taste) -> str | None:
        wanted = first_given(request.reasoning_effort, self._reasoning_effort)
        return taste.effort_with_tools if wanted is None and request.tools else wanted

    def _degradations(self, request: ChatRequest, body: Mapping[str, Any]) -> list[Degradation]:
        """Return the differences of the sent request from the one that was asked for."""
        model: str = body["model"]
        forced = (self._learned.get(model) or self._taste(model)).effort_with_tools
        wanted = first_given(request.reasoning_effort, self._reasoning_effort)
        if not request.tools or wanted is not None or forced is None:
            return []
        return [
            Degradation(
                requested="the model's own reasoning effort",
                actual=f"reasoning_effort {forced}",
                reason=f"{self._name} refuses tools together with reasoning for {model}",
            )
        ]


def _lesson(message: str, body: Mapping[str, Any], taste: Taste) -> Taste | None:
    """Return the limits that a refusal teaches about the server; None when the fault is the
    request's own.
    """
    text = message.lower()
    for marks, learn in _LESSONS:
        if all(mark in text for mark in marks) and (learned := learn(body, taste)) is not None:
            return learned
    return None


def _without_stream_usage(body: Mapping[str, Any], taste: Taste) -> Taste | None:
    return replace(taste, stream_usage=False) if "stream_options" in body else None


def _other_limit(body: Mapping[str, Any], taste: Taste) -> Taste | None:
    if taste.max_tokens not in body:
        return None
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    return replace(taste, max_tokens=other[taste.max_tokens])


def _no_effort_with_tools(body: Mapping[str, Any], taste: Taste) -> Taste | None:
    # An effort that was explicitly requested is never dropped silently.
    return None if "reasoning_effort" in body else replace(taste, effort_with_tools="none")


_LESSONS: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any], Taste], Taste | None]], ...] = (
    (("stream_options",), _without_stream_usage),
    (("max_tokens", "max_completion_tokens"), _other_limit),
    (("max_completion_tokens",), _other_limit),
    (("function tools", "reasoning_effort", "'none'"), _no_effort_with_tools),
)
