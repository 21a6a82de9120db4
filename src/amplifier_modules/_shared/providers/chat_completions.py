"""A client of the Chat Completions API, for every compatible server.

A provider of such a server sets its address and facts about its models; requests, streams, and the
differences between servers are handled here. If a server rejects a parameter that another requires,
the request is sent again without it and the server's dialect is remembered; that is not a retry,
since a retry sends the same request again.

A normalised `ChatRequest` is written in the form that all servers accept: text as plain strings where
there is nothing else, images as data URLs, tool results as text with their images in a user message
behind them, names and ids in the letters and lengths the API allows.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from decimal import Decimal
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
from amplifier_modules._shared.history.values import portable_id
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.providers.answer_stream import (
    AnswerStream,
    BlockChunk,
    StreamedBlock,
    find_tool_calls,
)
from amplifier_modules._shared.providers.base import (
    Chunk,
    HTTPProvider,
    add_lost,
    at_batch_price,
    combine_degradations,
    estimate_lost,
)
from amplifier_modules._shared.providers.settings import HTTPProviderConfig, first_given
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import token_count, token_counts

_MAX_ID = 40
_PERSON = re.compile(r"[^\s<|\\/>]{1,64}")
_IMAGES_FOLLOW = "[the images of this result are in the next message]"


def _wire_messages(messages: Sequence[Message], *, developer_role: bool) -> list[dict[str, Any]]:
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
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json":
        return {"type": "json_object"}
    json_schema = form.json_schema
    # Some callers hand over the API's own wrapping of name and schema.
    inner = json_schema.get("schema")
    wrapped = isinstance(inner, Mapping) and isinstance(json_schema.get("name"), str)
    schema: dict[str, Any] = dict(cast("Mapping[str, Any]", inner)) if wrapped else json_schema
    name = str(json_schema["name"] if wrapped else schema.get("title") or "response")
    described: dict[str, Any] = {"name": portable_id(name), "schema": schema}
    strict = form.strict if form.strict is not None else json_schema.get("strict")
    if wrapped and isinstance(strict, bool):
        described["strict"] = strict
    elif form.strict is not None:
        described["strict"] = form.strict
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
        parts = [_image_part(block.source) for block in message.content if block.type == "image"]
        if parts:
            text = f"{text}\n{_IMAGES_FOLLOW}" if text else _IMAGES_FOLLOW
            images.append({"type": "text", "text": f"[images from {message.name or 'a tool'}]"})
            images += parts
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


_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
# The server reports that it stopped early; the partial output is not an answer.
_GAVE_UP = {"insufficient_system_resource", "error", "abort", "cancelled"}


class OpenAIStream(AnswerStream):
    """An answer of one of OpenAI's APIs; see `API`.

    Attributes:
        model: What the server says answered, else what was asked.
        service_tier: What the server says it billed as.
    """

    def __init__(self, *, provider: str, model: str, names: Mapping[str, str]) -> None:
        super().__init__(provider=provider, model=model, names=names)
        self.model = model
        self.service_tier: str | None = None

    @property
    @abstractmethod
    def content(self) -> list[dict[str, Any]]:
        """The content blocks of the answer, in order."""

    @property
    @abstractmethod
    def finish_reason(self) -> str:
        """Why the answer ended, in the kernel's terms."""

    @abstractmethod
    def usage(self) -> Usage | None:
        """The server's counts in the kernel's terms; None if there are none or they are not valid."""

    @abstractmethod
    def metadata(self, request_id: str | None) -> dict[str, Any]:
        """The metadata of the response.

        Args:
            request_id: The service's id of the request, if its header has one.
        """


def read_usage(raw: Mapping[str, Any], asked: str, answered: str) -> Usage | None:
    """The counts of an answer; None if there are none or they are not valid.

    Args:
        raw: The server's counts.
        asked: The API's name for the tokens of the request, such as `prompt`.
        answered: Its name for the tokens of the answer, such as `completion`.
    """
    counts = token_counts(raw, f"{asked}_tokens", f"{answered}_tokens") if raw else None
    if counts is None:
        return None
    prompt, output = counts
    read = to_mapping(raw.get(f"{asked}_tokens_details"))
    written = to_mapping(raw.get(f"{answered}_tokens_details"))
    cached = token_count(read.get("cached_tokens"))
    # DeepSeek reports what came from its cache under a name of its own.
    cached = token_count(raw.get("prompt_cache_hit_tokens")) if cached is None else cached
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=token_count(raw.get("total_tokens")) or prompt + output,
        reasoning_tokens=token_count(written.get("reasoning_tokens")),
        cache_read_tokens=cached,
        cache_write_tokens=token_count(read.get("cache_write_tokens")),
    )


class _Block(StreamedBlock):
    __slots__ = ("refusal",)

    def __init__(self, index: int, kind: str, *, refusal: bool = False, **call: str) -> None:
        super().__init__(index, kind, **call)
        self.refusal = refusal

    def content(self) -> dict[str, Any]:
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": self.text}
        if self.kind == "tool_call":
            return self.call(self.text)
        block: dict[str, Any] = {"type": "text", "text": self.text}
        return block | {"refusal": True} if self.refusal else block


class ChatStream(OpenAIStream):
    """A streamed Chat Completions answer.

    Accepts what OpenAI and compatible servers send: reasoning under two names, tool calls without an
    index, without an id, with the same index for all, or with arguments that are not JSON. None of
    that is an error; only data that cannot be parsed at all is.
    """

    not_json = "an event that is not valid JSON"

    def __init__(self, *, provider: str, model: str, names: Mapping[str, str]) -> None:
        super().__init__(provider=provider, model=model, names=names)
        self._stopped: str | None = None
        self._usage: dict[str, Any] | None = None
        self._id: str | None = None
        self._open: _Block | None = None
        self._calls: dict[int, _Block] = {}
        self._last_call: _Block | None = None

    def events_in(self, answer: Mapping[str, Any]) -> Iterable[Any]:
        return (answer,)

    def close(self) -> list[BlockChunk]:
        ends: list[BlockChunk] = []
        self._end_text(ends)
        ends += [block.end(block.content()) for block in self._blocks if block.kind == "tool_call"]
        return ends

    @property
    def content(self) -> list[dict[str, Any]]:
        return [block.content() for block in self._blocks]

    @property
    def finish_reason(self) -> str:
        if self._refusal():
            return "content_filter"
        reason = _FINISH_REASONS.get(self._stopped or "", "stop")
        return "tool_calls" if self._calls and reason == "stop" else reason

    def usage(self) -> Usage | None:
        return read_usage(self._usage or {}, "prompt", "completion")

    def metadata(self, request_id: str | None) -> dict[str, Any]:
        named = {"request_id": request_id or self._id, "refusal": self._refusal()}
        return {
            "model": self.model,
            "stop_reason": self._stopped,
            "provider": self._provider,
            **{name: value for name, value in named.items() if value},
        }

    def _refusal(self) -> str:
        """The model's words if it refused."""
        return "".join(block.text for block in self._blocks if block.refusal)

    def _take(self, event: dict[str, Any], chunks: list[BlockChunk]) -> None:
        if event.get("error"):
            raise error_for_body(event, provider=self._provider, model=self._model)
        if self._id is None:
            response_id, model = event.get("id"), event.get("model")
            self._id = response_id if isinstance(response_id, str) else ""
            self.model = model if isinstance(model, str) and model else self.model
        if isinstance(usage := event.get("usage"), dict):
            self._usage = cast("dict[str, Any]", usage)
        if isinstance(tier := event.get("service_tier"), str):
            self.service_tier = tier
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self._read_choice(choice, chunks)

    def _read_choice(self, choice: dict[str, Any], chunks: list[BlockChunk]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if delta:
            if text := delta.get("reasoning_content") or delta.get("reasoning"):
                self._add_text("thinking", text, chunks)
            if text := delta.get("content"):
                self._add_text("text", text, chunks)
            if text := delta.get("refusal"):
                self._add_text("text", text, chunks, refusal=True)
            for call in delta.get("tool_calls") or ():
                self._add_call(call, chunks)
        if reason := choice.get("finish_reason"):
            if reason in _GAVE_UP:
                raise self._broken(f"stopped in the middle of its answer ({reason})")
            self._stopped = reason if isinstance(reason, str) else "unknown"
            self.is_whole = True

    def _add_text(
        self, kind: str, text: Any, chunks: list[BlockChunk], *, refusal: bool = False
    ) -> None:
        if not isinstance(text, str):
            text = _joined(text)
        block = self._open
        if block is None or block.kind != kind or block.refusal is not refusal:
            self._end_text(chunks)
            block = self._open = _Block(len(self._blocks), kind, refusal=refusal)
            self._blocks.append(block)
            chunks.append(block.start())
        block.write(text, chunks)

    def _end_text(self, chunks: list[BlockChunk]) -> None:
        if self._open is not None:
            chunks.append(self._open.end(self._open.content()))
            self._open = None

    def _add_call(self, call: dict[str, Any], chunks: list[BlockChunk]) -> None:
        function: dict[str, Any] = call.get("function") or {}
        block = self._find_block(call, function)
        if block is None:
            self._end_text(chunks)
            taken = {block.id for block in self._blocks}
            wire_id, at = call.get("id"), call.get("index")
            call_id = self._call_id(
                wire_id if isinstance(wire_id, str) and wire_id not in taken else None
            )
            name = self._tool_name(function.get("name"))
            block = _Block(len(self._blocks), "tool_call", id=call_id, name=name)
            self._blocks.append(block)
            self._calls[at if isinstance(at, int) else len(self._calls)] = block
            self._last_call = block
            chunks.append(block.start())
        arguments = function.get("arguments")
        if arguments:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            block.write(text, chunks)

    def _find_block(self, call: dict[str, Any], function: dict[str, Any]) -> _Block | None:
        """The call a delta goes on with; None when it begins a new one."""
        begins = bool(function.get("name"))
        at = call.get("index")
        if isinstance(at, int):
            block = self._calls.get(at)
            # Some servers give every call the index 0; another id with a name distinguishes them.
            another = block is not None and call.get("id") not in (None, "", block.id)
            return None if begins and another else block
        return None if begins or not self._calls else self._last_call


def _joined(parts: Any) -> str:
    """Text that came as a list of parts."""
    if not isinstance(parts, list):
        return str(parts)
    items = cast("list[Any]", parts)
    return "".join(str(item.get("text") or "") for item in items if isinstance(item, Mapping))


class API(NamedTuple):
    """One of the two APIs of OpenAI.

    Attributes:
        path: Where it is, below the base address.
        batch_url: The address of its requests in a batch.
        stream: Reads its answers.
    """

    path: str
    batch_url: str
    stream: type[OpenAIStream]


CHAT = API("/chat/completions", "/v1/chat/completions", ChatStream)


@dataclass(frozen=True, slots=True)
class Taste:
    """The abilities of one model of one server.

    Attributes:
        max_tokens: Name of the parameter that limits the answer.
        stream_usage: It takes `stream_options`.
        effort_with_tools: Reasoning effort to send with tools where the request names none.
        encrypted_reasoning: It returns its reasoning encrypted, if asked to.
        tool_references: It loads the tools that `tool_search` finds where the conversation refers to them.
    """

    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    effort_with_tools: str | None = None
    encrypted_reasoning: bool = False
    tool_references: bool = False


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

    def _api(self, model: str) -> API:
        """Return the API to use for a model."""
        return CHAT

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
                async with aclosing(
                    self._stream(endpoint, request, body, self._api(model))
                ) as chunks:
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
        self, endpoint: Endpoint, request: ChatRequest, body: dict[str, Any], api: API
    ) -> AsyncGenerator[Chunk]:
        model: str = body["model"]
        names = {portable_id(tool.name): tool.name for tool in request.tools or ()}
        answer = api.stream(provider=self._name, model=model, names=names)
        whole = await self._batch_answer(request, body, {"url": api.batch_url, "model": model})
        if whole is not None:
            for chunk in answer.take_whole(whole.body):
                yield chunk
            if not answer.is_whole:
                raise self._unfinished(request)
            answer.service_tier = None
            yield at_batch_price(self._response(request, body, answer, None), whole)
            return
        opened = endpoint.stream_sse(api.path, body, model=model, timeout=request.timeout)
        async with opened as stream:
            try:
                async with aclosing(answer.relay(stream)) as reads:
                    async for chunks in reads:
                        for chunk in chunks:
                            yield chunk
                if not answer.is_whole:
                    raise self._unfinished(request)
            except BaseException as error:
                # Of a whole answer only the accounting is lost.
                if not (answer.is_whole and isinstance(error, (StreamError, LLMTimeoutError))):
                    lost = estimate_lost(request, answer.written(), error)
                    add_lost(self._usage(answer), self._with_cost(lost, answer))
                    raise
            for chunk in answer.close():
                yield chunk
            request_id = stream.headers.get("x-request-id")
            yield self._response(request, body, answer, request_id)

    def _usage(self, answer: OpenAIStream) -> Usage | None:
        return self._with_cost(answer.usage(), answer)

    def _with_cost(self, usage: Usage | None, answer: OpenAIStream) -> Usage | None:
        if usage is not None:
            usage.cost_usd = self._cost(answer.model, usage, answer.service_tier)
        return usage

    def _response(
        self,
        request: ChatRequest,
        body: dict[str, Any],
        answer: OpenAIStream,
        request_id: str | None,
    ) -> ChatResponse:
        content = answer.content
        return ChatResponse(
            content=cast("Any", content),
            tool_calls=find_tool_calls(content) or None,
            usage=self._usage(answer),
            degradation=combine_degradations(self._degradations(request, body)),
            finish_reason=answer.finish_reason,
            metadata=answer.metadata(request_id),
        )

    # -- the request ---------------------------------------------------------------------------

    def _body(self, request: ChatRequest, model: str, taste: Taste) -> dict[str, Any]:
        defaults = self._defaults
        body: dict[str, Any] = {
            "model": model,
            "messages": _wire_messages(request.messages, developer_role=self._developer_role),
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
        effort = first_given(request.reasoning_effort, self._reasoning_effort)
        return taste.effort_with_tools if effort is None and request.tools else effort

    def _degradations(self, request: ChatRequest, body: Mapping[str, Any]) -> list[Degradation]:
        """Return the differences of the sent request from the one that was asked for."""
        model: str = body["model"]
        forced = (self._learned.get(model) or self._taste(model)).effort_with_tools
        effort = first_given(request.reasoning_effort, self._reasoning_effort)
        if not request.tools or effort is not None or forced is None:
            return []
        return [
            Degradation(
                requested="the model's own reasoning effort",
                actual=f"reasoning_effort {forced}",
                reason=f"{self._name} refuses tools together with reasoning for {model}",
            )
        ]


_NO_REASONING_WITH_TOOLS = ("function tools", "reasoning_effort", "'none'")


def _lesson(message: str, body: Mapping[str, Any], taste: Taste) -> Taste | None:
    """Return the limits that a refusal teaches about the server; None when the fault is the
    request's own.
    """
    text = message.lower()
    if "stream_options" in text and "stream_options" in body:
        return replace(taste, stream_usage=False)
    if "max_completion_tokens" in text and taste.max_tokens in body:
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
        return replace(taste, max_tokens=other[taste.max_tokens])
    # An effort that was explicitly requested is never dropped silently.
    if all(mark in text for mark in _NO_REASONING_WITH_TOOLS) and "reasoning_effort" not in body:
        return replace(taste, effort_with_tools="none")
    # Models that do not reason, and servers without encryption, refuse this.
    if taste.encrypted_reasoning and ("encrypted" in text or "include" in text):
        return replace(taste, encrypted_reasoning=False)
    if taste.tool_references and "tool_search" in text:
        return replace(taste, tool_references=False)
    return None
