"""Calls a provider, streaming if it can, and emits events for what it answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from amplifier_core.cancellation import await_result
from amplifier_core.hooks import plain
from amplifier_core.llm_errors import InvalidRequestError, StreamError
from amplifier_core.message_models import ResponseFormatJsonSchema
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.replies import read_blocks
from amplifier_modules._shared.module.spans import Span
from amplifier_support.session_capabilities import RESPONSE_FORMAT

STREAM_EVENTS = ("provider:stream",)
"""Events of streaming in addition to those that the kernel defines."""

_CHUNK_START = "content_block_start"
_CHUNK_DELTA = "content_block_delta"
_CHUNK_END = "content_block_end"


async def complete(provider: Any, request: Any, channel: Channel, span: Span) -> Any:
    """Request a complete answer and emit events for its blocks."""
    response = await provider.complete(request)
    await announce(response, channel, span)
    return response


async def announce(response: Any, channel: Channel, span: Span) -> None:
    """Emit start and end events, without deltas, for the blocks of a complete answer."""
    blocks = read_blocks(response)
    for index, block in enumerate(blocks):
        about = {"block_type": block.get("type"), "block_index": index, **span.fields}
        await channel.emit("content_block:start", {**about, **_names_in(block)})
        await channel.emit(
            "content_block:end", {**about, "total_blocks": len(blocks), "block": block}
        )


async def stream(provider: Any, request: Any, channel: Channel, span: Span) -> Any:
    """Call `provider.stream_complete(request)`, or `complete` if there is no such method.

    Every chunk becomes a `provider:stream` event; chunks about content blocks also become
    `content_block:*` events. The last chunk is the complete answer.

    Raises:
        StreamError: The stream ended before the complete answer.
    """
    stream_complete = find_stream(provider)
    if stream_complete is None:
        return await complete(provider, request, channel, span)
    chunks = await await_result(stream_complete(request))
    emit, ids = channel.emit, span.fields
    has_listeners = channel.has_listeners("provider:stream")
    last: Any = None
    has_blocks = False
    texts: list[str] = []
    try:
        async for chunk in chunks:
            last = chunk
            if has_listeners:
                plain_chunk = chunk if type(chunk) is dict else plain(chunk)
                await emit("provider:stream", {"chunk": plain_chunk, **ids})
            channel.has_emitted = True
            if type(chunk) is not dict:
                continue
            block_chunk = cast("dict[str, Any]", chunk)
            kind = block_chunk.get("type")
            if kind == _CHUNK_DELTA:
                _check_keys(block_chunk, "index", "block_type", "delta")
                block_type, delta = block_chunk["block_type"], block_chunk["delta"]
                if type(delta) is not str:
                    raise TypeError("a delta of the stream is not a string")
                if block_type == "text":
                    texts.append(delta)
                await emit(
                    "content_block:delta",
                    {
                        "block_type": block_type,
                        "block_index": block_chunk["index"],
                        "delta": delta,
                        **ids,
                    },
                )
            elif kind in (_CHUNK_START, _CHUNK_END):
                has_blocks = True
                await _bracket(block_chunk, channel, span)
                # Once per block: most runs have no listener, and an event costs as much as a delta.
                has_listeners = channel.has_listeners("provider:stream")
        if not _is_response(last) and (last is None or isinstance(last, Mapping)):
            raise StreamError(
                "The provider's stream ended without its final response; the answer may be cut off"
            )
    except BaseException:
        channel.partial_text = "".join(texts)
        raise
    finally:
        # If the loop stops early, the provider must be notified now, not when the generator is
        # garbage-collected.
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
    if not has_blocks and _is_response(last):
        await announce(last, channel, span)
    return last  # The caller reports anything that is neither a chunk nor a response.


async def _bracket(chunk: dict[str, Any], channel: Channel, span: Span) -> None:
    """Emit the event for the start or the end of a block."""
    _check_keys(chunk, "index", "block_type")
    index = chunk["index"]
    about = {"block_type": chunk["block_type"], "block_index": index, **span.fields}
    if chunk["type"] == _CHUNK_START:
        await channel.emit("content_block:start", {**about, **_names_in(chunk)})
    else:
        # The final number of blocks is not known yet; this is the count so far.
        ended = {"total_blocks": index + 1, "block": chunk.get("block")}
        await channel.emit("content_block:end", {**about, **ended})


def _names_in(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in ("id", "name", "visibility") if key in block}


def find_stream(provider: Any) -> Callable[[Any], Any] | None:
    """The provider's `stream_complete`, if it has one.

    It counts if the provider's class has it, or if it is an async generator function: an object
    that has every attribute, such as a mock, does not stream.
    """
    method = getattr(provider, "stream_complete", None)
    is_own = hasattr(type(provider), "stream_complete") or inspect.isasyncgenfunction(method)
    return method if callable(method) and is_own else None


def _check_keys(chunk: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if key not in chunk:
            raise TypeError(f"a chunk {chunk['type']!r} of the stream has no {key!r}")


def _is_response(chunk: Any) -> bool:
    if isinstance(chunk, Mapping):
        chunk_data = cast("Mapping[str, Any]", chunk)
        return "content" in chunk_data and chunk_data.get("type") not in (
            _CHUNK_START,
            _CHUNK_DELTA,
        )
    return hasattr(chunk, "content")


_REFUSED = (400, 422)
"""Statuses of a request whose schema the service does not support."""


class AnswerFormat:
    """Which requests of a session carry the form of the answer.

    The form is also described in the prompt and checked afterwards, so a request can do without. It
    outlives turns, so that a schema a model has refused is not sent to it again.
    """

    def __init__(self) -> None:
        self._refused: set[tuple[str, str | None]] = set()
        self._wanted: ResponseFormatJsonSchema | None = None

    def begin(self, coordinator: Any) -> None:
        """Read what the session wants of the answers of a turn."""
        has_capabilities = callable(getattr(coordinator, "get_capability", None))
        form = RESPONSE_FORMAT.of(coordinator) if has_capabilities else None
        before, self._wanted = self._wanted, None
        if isinstance(form, Mapping):
            self._wanted = ResponseFormatJsonSchema.model_validate(form)
        if self._wanted != before:
            self._refused.clear()

    def fields(
        self, name: str, provider: Any, model: str | None, *, has_tools: bool
    ) -> dict[str, Any]:
        """The fields that a request gets.

        Args:
            name: Name of the provider.
            provider: The provider. Many servers let a model call no tools while its answer must
                match a schema; only those that declare otherwise get both.
            model: The model, if known.
            has_tools: Whether the request offers tools.
        """
        if self._wanted is None or (name, model) in self._refused:
            return {}
        if has_tools and getattr(provider, "supports_schema_with_tools", False) is not True:
            return {}
        return {"response_format": self._wanted}

    def drop(self, request: Any, name: str, model: str | None, error: InvalidRequestError) -> bool:
        """Return True to send a refused request again, without the form of the answer."""
        form = getattr(request, "response_format", None)
        if form is None or error.status_code not in _REFUSED or (name, model) in self._refused:
            return False
        self._refused.add((name, model))
        return True
