"""The provider of provider-mock."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import yaml
from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from amplifier_core import llm_errors
from amplifier_core.llm_errors import InvalidRequestError
from amplifier_core.message_models import ChatRequest, ChatResponse, Message, ToolCall, Usage
from amplifier_core.models import ModelInfo, ProviderInfo
from amplifier_modules._shared.history.request import normalise
from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    parse_config,
    several,
)
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.providers.catalogue import PricesConfig
from amplifier_support.price_lists import Tokens
from amplifier_support.session_capabilities import WORKING_DIR

# -- settings of provider-mock, and the form of a script ---------------------------------


MODULE_ID = "provider-mock"

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]


class _Settings(ModuleConfig):
    model_config = ConfigDict(populate_by_name=True)


class Fault(_Settings):
    """An error to raise instead of an answer.

    Attributes:
        type: Name of a class of `amplifier_core.llm_errors`, such as ``RateLimitError``.
        message: Its message.
        retryable: Overrides the default of the class.
        status_code: HTTP status to report.
        retry_after: Seconds to report as the wait the service asks for.
        after_chunks: When streaming, how many chunks come through before the error.
    """

    type: str
    message: str = "scripted fault"
    retryable: bool | None = None
    status_code: int | None = None
    retry_after: float | None = Field(default=None, ge=0)
    after_chunks: int = Field(default=0, ge=0)

    @field_validator("type")
    @classmethod
    def _is_an_llm_error(cls, value: str) -> str:
        kind = getattr(llm_errors, value, None)
        if not (isinstance(kind, type) and issubclass(kind, llm_errors.LLMError)):
            raise ValueError(f"'{value}' is not an error class of amplifier_core.llm_errors")
        return value

    def error(self, model: str) -> llm_errors.LLMError:
        """The exception to raise."""
        kind: type[llm_errors.LLMError] = getattr(llm_errors, self.type)
        error = kind(
            self.message,
            provider="mock",
            model=model,
            status_code=self.status_code,
            **({} if self.retryable is None else {"retryable": self.retryable}),
        )
        error.retry_after = self.retry_after
        return error


class ScriptedCall(_Settings):
    """A tool call in a reply.

    Attributes:
        name: Tool to call.
        input: Its arguments (also `arguments`).
        id: Id of the call; by default unique for the provider.
    """

    name: str
    input: dict[str, Any] = Field(
        default_factory=dict[str, Any], validation_alias=AliasChoices("input", "arguments")
    )
    id: str | None = None


class Reply(_Settings):
    """One answer. The blocks come in the order: thinking, text, tool calls.

    Attributes:
        text: Text of the answer.
        thinking: Thinking text, with its `signature`.
        signature: Signature of the thinking block.
        redacted_thinking: Opaque data of a redacted thinking block.
        tool_calls: Tools to call.
        content: All blocks exactly, instead of the fields above.
        usage: Token counts as in `amplifier_core.message_models.Usage`; missing counts are
            estimated from the text.
        finish_reason: By default ``tool_calls`` with tool calls, else ``stop``.
        delay: Seconds before the answer begins, instead of the provider's `delay`.
        error: A fault instead of the answer, or in the middle of it.
    """

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    redacted_thinking: str | None = None
    tool_calls: list[ScriptedCall] = Field(default_factory=list[ScriptedCall])
    content: list[dict[str, Any]] | None = None
    usage: dict[str, Any] = Field(default_factory=dict[str, Any])
    finish_reason: FinishReason | None = None
    delay: float | None = Field(default=None, ge=0)
    error: Fault | None = None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """The mapping, or the text alone."""
        return {"anyOf": [handler(core), {"type": "string"}]}

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class MockConfig(_Settings):
    """Settings of provider-mock.

    Attributes:
        replies: The replies, one after the other; a string is a reply with that text.
        script: YAML file with the replies, a list or a mapping with `replies`; a relative path
            starts at the session's working directory.
        on_end: What to do after the last reply: raise an error, repeat the last one, start again,
            or echo.
        model: Name of the model (also `default_model`).
        priority: The provider with the lowest number is used first.
        streaming: Offer `stream_complete`.
        chunk_size: Characters in each streamed delta.
        chunk_delay: Seconds between two streamed deltas.
        delay: Seconds before each answer begins.
        supports_tools: Whether loops may offer tools.
        context_window: Context window the model reports, in tokens.
        max_output_tokens: Output limit the model reports, in tokens.
        prices: Prices of the answers whose `usage` has no `cost_usd`; by default their cost is unknown.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "responses": alias_for("replies"),
        **several(
            "debug raw raw_debug",
            ignored("use hooks-logging with 'level: debug' and 'include_messages: true'"),
        ),
    }

    replies: list[Reply] = Field(default_factory=list[Reply])
    script: str | None = None
    on_end: Literal["error", "repeat", "cycle", "echo"] = "error"
    model: str = Field(
        default="mock-model", validation_alias=AliasChoices("model", "default_model")
    )
    priority: int = 100
    streaming: bool = True
    chunk_size: int = Field(default=16, ge=1)
    chunk_delay: float = Field(default=0, ge=0)
    delay: float = Field(default=0, ge=0)
    supports_tools: bool = True
    context_window: int = Field(default=200_000, ge=1)
    max_output_tokens: int = Field(default=8_192, ge=1)
    prices: PricesConfig | None = None

    @model_validator(mode="after")
    def _one_source(self) -> MockConfig:
        if self.replies and self.script:
            raise ValueError("'replies' and 'script' are mutually exclusive")
        return self


# -- the provider of provider-mock -------------------------------------------------------


CHARACTERS_PER_TOKEN = 4


class MockProvider:
    """Answers from a script (Provider Contract).

    Attributes:
        requests: Every request, normalised, oldest first.
    """

    name = "mock"

    def __init__(self, config: MockConfig, replies: list[Reply], coordinator: Any = None) -> None:
        self.config = config
        self.priority = config.priority
        self.model = config.model
        self.supports_tools = config.supports_tools
        self.requests: list[ChatRequest] = []
        self._replies = replies
        self._coordinator = coordinator
        self._calls_made = 0

    def get_info(self) -> ProviderInfo:
        """Describe the provider; its defaults give the model and its window."""
        streaming = ["streaming"] if self.config.streaming else []
        tools = ["tools"] if self.config.supports_tools else []
        return ProviderInfo(
            id="mock",
            display_name="Mock",
            capabilities=[*tools, *streaming, "thinking", "vision"],
            defaults={
                "model": self.model,
                "context_window": self.config.context_window,
                "max_output_tokens": self.config.max_output_tokens,
            },
        )

    async def list_models(self) -> list[ModelInfo]:
        """The one configured model."""
        return [
            ModelInfo(
                id=self.model,
                display_name=self.model,
                context_window=self.config.context_window,
                max_output_tokens=self.config.max_output_tokens,
                capabilities=self.get_info().capabilities,
            )
        ]

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of a response, in order."""
        return list(response.tool_calls or [])

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """The next scripted reply, not streamed.

        Raises:
            amplifier_core.llm_errors.LLMError: The script says so, or it has ended.
        """
        response: ChatResponse | None = None
        async for chunk in self._answer(request, whole=True):
            response = chunk
        assert response is not None
        return response

    async def _answer(self, request: ChatRequest, *, whole: bool) -> AsyncGenerator[Any, None]:
        """The chunks of the next answer and the response; the response alone if `whole`."""
        request = normalise(request)
        self.requests.append(request)
        model = request.model or self.model
        started = time.perf_counter()
        about = {"provider": self.name, "model": model}
        tools = [tool.name for tool in request.tools or ()]
        await self._emit(
            "llm:request", {**about, "message_count": len(request.messages), "tools": tools}
        )
        try:
            reply = self._next(request)
            delay = self.config.delay if reply.delay is None else reply.delay
            if delay:
                await asyncio.sleep(delay)
            response = self._response(reply, request, model)
            if not whole:
                async for chunk in self._chunks(reply, response, model):
                    yield chunk
            if reply.error is not None:
                raise reply.error.error(model)
        except BaseException as error:
            status = "error" if isinstance(error, Exception) else "aborted"
            failed = {"type": type(error).__name__, "message": str(error)}
            await self._emit(
                "llm:response", {**about, "status": status, "error": failed, **_since(started)}
            )
            raise
        ended = {
            "status": "ok",
            "usage": response.usage.model_dump() if response.usage else None,
            "finish_reason": response.finish_reason,
        }
        await self._emit("llm:response", {**about, **ended, **_since(started)})
        yield response

    async def _chunks(
        self, reply: Reply, response: ChatResponse, model: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        fault = reply.error
        for count, chunk in enumerate(_stream(response, self.config.chunk_size)):
            if fault is not None and count == fault.after_chunks:
                raise fault.error(model)
            if self.config.chunk_delay and chunk["type"] == "content_block_delta":
                await asyncio.sleep(self.config.chunk_delay)
            yield chunk

    def _next(self, request: ChatRequest) -> Reply:
        index, replies = len(self.requests) - 1, self._replies
        if index < len(replies):
            return replies[index]
        on_end = self.config.on_end if replies else "echo"
        if on_end == "repeat":
            return replies[-1]
        if on_end == "cycle":
            return replies[index % len(replies)]
        if on_end == "echo":
            return Reply(text=_echo(request))
        raise InvalidRequestError(
            f"provider-mock: the script has no reply to request {index + 1}; add one, or set "
            "on_end to repeat, cycle or echo",
            provider=self.name,
            model=self.model,
        )

    def _response(self, reply: Reply, request: ChatRequest, model: str) -> ChatResponse:
        blocks = self._blocks(reply)
        calls = [
            ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
            for block in blocks
            if block["type"] == "tool_call"
        ]
        finish_reason = reply.finish_reason or ("tool_calls" if calls else "stop")
        return ChatResponse.model_validate(
            {
                "content": blocks,
                "tool_calls": calls or None,
                "usage": _usage(reply.usage, request, blocks, self.config.prices),
                "finish_reason": finish_reason,
                "metadata": {
                    "model": model,
                    "provider": self.name,
                    "stop_reason": finish_reason,
                    "request_id": f"mock_request_{len(self.requests)}",
                },
            }
        )

    def _blocks(self, reply: Reply) -> list[dict[str, Any]]:
        if reply.content is not None:
            return [
                {"id": self._next_id(), **block} if block.get("type") == "tool_call" else block
                for block in reply.content
            ]
        blocks: list[dict[str, Any]] = []
        if reply.redacted_thinking is not None:
            blocks.append({"type": "redacted_thinking", "data": reply.redacted_thinking})
        if reply.thinking is not None:
            signed = {"signature": reply.signature} if reply.signature else {}
            blocks.append({"type": "thinking", "thinking": reply.thinking, **signed})
        if reply.text is not None:
            blocks.append({"type": "text", "text": reply.text})
        for call in reply.tool_calls:
            call_id = self._next_id()
            named = {"id": call.id or call_id, "name": call.name}
            blocks.append({"type": "tool_call", **named, "input": call.input})
        return blocks

    def _next_id(self) -> str:
        """Return the id of the next call that has none of its own."""
        self._calls_made += 1
        return f"mock_call_{self._calls_made}"

    async def _emit(self, event: str, data: dict[str, Any]) -> None:
        hooks = getattr(self._coordinator, "hooks", None)
        if hooks is not None:
            await hooks.emit(event, {**data, **event_ids()})


class StreamingMockProvider(MockProvider):
    """A `MockProvider` that also streams."""

    async def stream_complete(
        self, request: ChatRequest, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """The next scripted answer in chunks; the last one is the `ChatResponse`.

        Raises:
            amplifier_core.llm_errors.LLMError: As for `complete`, possibly after some chunks.
        """
        async with aclosing(self._answer(request, whole=False)) as chunks:
            async for chunk in chunks:
                yield chunk


def create(config: MockConfig, replies: list[Reply], coordinator: Any = None) -> MockProvider:
    """The provider for a config: one with `stream_complete` if it is to stream."""
    kind = StreamingMockProvider if config.streaming else MockProvider
    return kind(config, replies, coordinator)


def _since(started: float) -> dict[str, float]:
    return {"duration_ms": round((time.perf_counter() - started) * 1000, 1)}


def _stream(response: ChatResponse, size: int) -> Iterator[dict[str, Any]]:
    """A response as the chunks a service would send."""
    for index, block in enumerate(response.content):
        plain = block.model_dump(exclude_none=True)
        kind = plain["type"]
        about = {"index": index, "block_type": kind}
        named = {key: plain[key] for key in ("id", "name", "visibility") if key in plain}
        yield {"type": "content_block_start", **about, **named}
        text = _streamed_text(plain)
        for at in range(0, len(text), size):
            yield {"type": "content_block_delta", **about, "delta": text[at : at + size]}
        yield {"type": "content_block_end", **about, "block": plain}


def _streamed_text(block: dict[str, Any]) -> str:
    if block["type"] == "tool_call":
        return json.dumps(block["input"])
    return str(block.get("text") or block.get("thinking") or "")


def _usage(
    overrides: dict[str, Any],
    request: ChatRequest,
    blocks: list[dict[str, Any]],
    prices: PricesConfig | None,
) -> Usage:
    sent = sum(len(_text(message)) for message in request.messages)
    characters = sum(len(_streamed_text(block)) for block in blocks)
    read = int(overrides.get("input_tokens", sent // CHARACTERS_PER_TOKEN + 1))
    written = int(overrides.get("output_tokens", characters // CHARACTERS_PER_TOKEN + 1))
    counts = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    cost = prices.as_prices().cost(Tokens(read, written)) if prices is not None else None
    return Usage.model_validate({**counts, "cost_usd": cost, **overrides})


def _echo(request: ChatRequest) -> str:
    last = request.messages[-1]
    return f"{'The tool' if last.role == 'tool' else 'You'} said: {_text(last)}"


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = (getattr(block, "text", None) for block in message.content)
    return "".join(text for text in texts if text)


def _read_replies(config: MockConfig, working_dir: str | None) -> list[Reply]:
    """The scripted replies, from the config itself or from its script file.

    Args:
        config: The provider's settings.
        working_dir: Where a relative script path starts; the process's own when None.

    Raises:
        ValueError: The file cannot be read, or what it holds is not a script.
    """
    if config.script is None:
        return config.replies
    path = Path(working_dir or ".") / Path(config.script).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{MODULE_ID}: cannot read script {path}: {error}") from error
    held = _parse(text, path)
    if isinstance(held, list):
        held = {"replies": held}
    if not isinstance(held, dict) or set(cast("dict[str, Any]", held)) != {"replies"}:
        raise ValueError(
            f"{MODULE_ID}: script {path} must be a list of replies, or a mapping with 'replies'"
        )
    return parse_config(MockConfig, cast("dict[str, Any]", held), f"{MODULE_ID}: {path}").replies


def _parse(text: str, path: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = path if mark is None else f"{path}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or error
        raise ValueError(f"{MODULE_ID}: script {where} is not valid YAML: {problem}") from error


async def mount(coordinator: Any, settings: MockConfig) -> None:
    """Mount the provider as ``mock``; settings as in `MockConfig`.

    Raises:
        ValueError: The config or the script file is invalid.
    """
    replies = _read_replies(settings, WORKING_DIR.of(coordinator))
    provider = create(settings, replies, coordinator)
    await coordinator.mount("providers", provider, name="mock")
