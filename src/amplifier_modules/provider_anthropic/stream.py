"""Assemble a response from the events of a Messages stream.

The hot path of the provider: it runs once per delta. Text is collected in pieces and joined when
its block ends.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, cast

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_modules._shared.history import arguments_or_text
from amplifier_modules._shared.history.values import is_clean
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.http.event_stream import describe_invalid_event, read_event, text_in
from amplifier_modules._shared.providers.chat_stream import StreamedBlock, bytes_in

Event = dict[str, Any]

_BLOCK_TYPES = {
    "text": "text",
    "thinking": "thinking",
    "redacted_thinking": "redacted_thinking",
    "tool_use": "tool_call",
}
_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


_OF_THE_END = ("stop_reason", "stop_sequence", "stop_details")

_MAX_TYPE = 100
"""Characters of the name of an unknown block type that are kept."""


class _Open(StreamedBlock):
    """A content block that is being written."""

    __slots__ = ("citations", "given", "signature")

    def __init__(self, index: int, kind: str, given: dict[str, Any], **call: str) -> None:
        super().__init__(index, kind, **call)
        self.given = given
        signature = given.get("signature")
        self.signature = signature if isinstance(signature, str) and signature else None
        self.citations: list[Any] = []


class StreamAssembly:
    """Process events, return chunks, and hold the final message.

    Args:
        provider: For error messages.
        model: Model that was asked.
        names: Names of the offered tools by the names that were sent.

    Attributes:
        message: The vendor's message without its content, once it has begun.
        content: The finished blocks, as kernel blocks in their dict form.
        omitted: Types of blocks that the kernel does not support, left out.
        usage: The vendor's counts; later ones replace earlier ones.
        stop: What `message_delta` said: `stop_reason`, `stop_sequence`, `stop_details`.
        is_complete: Whether the terminal event has come.
        request_id: The service's name for the request, for its support.
        error: What went wrong in the stream; chunks before it are still valid.
    """

    def __init__(
        self, *, provider: str, model: str | None, names: Mapping[str, str] | None = None
    ) -> None:
        self.message: dict[str, Any] = {}
        self.content: list[dict[str, Any]] = []
        self.omitted: list[str] = []
        self.usage: dict[str, Any] = {}
        self.stop: dict[str, Any] = {}
        self.is_complete = False
        self.error: LLMError | None = None
        self.request_id: str | None = None
        self._provider = provider
        self._model = model
        self._names = names or {}
        self._open: dict[int, _Open] = {}
        self._blocks: list[_Open] = []

    def take(self, batch: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """The chunks for these server-sent events, in order."""
        chunks: list[dict[str, Any]] = []
        for _, data in batch:
            try:
                event = read_event(data)
            except ValueError:
                self.error = self._broken(f"an event that is not JSON: {data[:200]!r}")
                break
            self._take(event, chunks)
            if self.error is not None:
                break
        return chunks

    def take_event(self, event: Event) -> list[dict[str, Any]]:
        """The chunks for one decoded event."""
        chunks: list[dict[str, Any]] = []
        self._take(event, chunks)
        return chunks

    def take_message(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The chunks for a message that came whole."""
        chunks: list[dict[str, Any]] = []
        self._take({"type": "message_start", "message": message}, chunks)
        content = message.get("content")
        if not isinstance(content, list):
            self.error = self._broken("a message without content", retryable=False)
            return chunks
        for index, block in enumerate(cast("list[Any]", content)):
            self._take(
                {"type": "content_block_start", "index": index, "content_block": block}, chunks
            )
            for citation in block.get("citations") or () if isinstance(block, dict) else ():
                delta = {"type": "citations_delta", "citation": citation}
                self._take({"type": "content_block_delta", "index": index, "delta": delta}, chunks)
            self._take({"type": "content_block_stop", "index": index}, chunks)
        ending = {key: message[key] for key in _OF_THE_END if key in message}
        usage = message.get("usage")
        self._take({"type": "message_delta", "delta": ending, "usage": usage}, chunks)
        self._take({"type": "message_stop"}, chunks)
        return chunks

    def written(self) -> int:
        """Bytes of the text that has come."""
        return bytes_in(self._blocks)

    def _take(self, event: Event, chunks: list[dict[str, Any]]) -> None:
        try:
            kind = event["type"]
            if kind == "content_block_delta":
                block = self._open.get(event["index"])
                if block is None:
                    return
                delta = event["delta"]
                field = _DELTA_FIELDS.get(delta["type"])
                if field is None:
                    self._take_rare(delta, block)
                    return
                text = delta[field]
                if type(text) is not str:
                    raise TypeError(field)
                if text:
                    chunks.append(block.delta(text))
            elif kind == "content_block_start":
                self._start(event, chunks)
            elif kind == "content_block_stop":
                self._finish(self._open.pop(event["index"], None), chunks)
            elif kind == "message_start":
                self.message = event["message"]
                self._count(self.message.get("usage") or {})
            elif kind == "message_delta":
                self.stop |= event["delta"]
                self._count(event["usage"])
            elif kind == "message_stop":
                for block in list(self._open.values()):
                    self._finish(block, chunks)
                self._open.clear()
                self.is_complete = True
            elif kind == "error":
                self.error = error_for_body(event, provider=self._provider, model=self._model)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # The next attempt would get the same from this service.
            self.error = self._broken(describe_invalid_event(error), retryable=False)

    def _count(self, usage: Any) -> None:
        """Take over counts; later ones replace earlier ones, null does not."""
        if not isinstance(usage, dict):
            raise TypeError("usage")
        counts = cast("dict[str, Any]", usage).items()
        self.usage |= {name: count for name, count in counts if count is not None}

    def _take_rare(self, delta: dict[str, Any], block: _Open) -> None:
        if delta["type"] == "signature_delta":
            block.signature = text_in(delta, "signature")
        elif delta["type"] == "citations_delta" and is_clean(delta["citation"]):
            block.citations.append(delta["citation"])

    def _start(self, event: Event, chunks: list[dict[str, Any]]) -> None:
        given = event["content_block"]
        kind = _BLOCK_TYPES.get(given["type"])
        if kind is None:
            self.omitted.append(str(given["type"])[:_MAX_TYPE])
            return
        call: dict[str, str] = {}
        if kind == "tool_call":
            call = {"id": _id_in(given), "name": _name_in(given, self._names)}
        elif kind == "redacted_thinking":
            text_in(given, "data")
        block = _Open(len(self._blocks), kind, given, **call)
        self._blocks.append(block)
        self._open[event["index"]] = block
        chunks.append(block.start())
        if text := given.get(kind) and text_in(given, kind):  # what comes with the start
            chunks.append(block.delta(text))

    def _finish(self, block: _Open | None, chunks: list[dict[str, Any]]) -> None:
        if block is None:
            return
        finished = _finish_block(block)
        self.content.append(finished)
        chunks.append(block.end(finished))

    def _broken(self, what: str, *, retryable: bool = True) -> StreamError:
        return StreamError(
            f"{self._provider} sent {what}",
            provider=self._provider,
            model=self._model,
            retryable=retryable,
        )


def _id_in(start: dict[str, Any]) -> str:
    """A call's id; a new one if the service gave none."""
    given = start.get("id")
    return given if isinstance(given, str) and given else f"toolu_{secrets.token_hex(12)}"


def _name_in(start: dict[str, Any], names: Mapping[str, str]) -> str:
    """The name of the tool a call is for; empty, which no tool has, if there is none."""
    given = start.get("name")
    return names.get(given, given) if isinstance(given, str) else ""


def _finish_block(block: _Open) -> dict[str, Any]:
    text = block.text
    match block.kind:
        case "text":
            finished: dict[str, Any] = {"type": "text", "text": text}
            if block.citations:
                finished["citations"] = block.citations
        case "thinking":
            finished = {"type": "thinking", "thinking": text, "signature": block.signature}
        case "redacted_thinking":
            finished = {"type": "redacted_thinking", "data": block.given["data"]}
        case _:
            finished = {"type": "tool_call", "id": block.id, "name": block.name}
            finished |= read_arguments(text, block.given.get("input"))
    return finished


def read_arguments(text: str, given: Any = None) -> dict[str, Any]:
    """A tool's input from its JSON: `{"input": …}`.

    Anything but a valid JSON object becomes an empty input with the text as `invalid_arguments`, so
    that the loop can report it to the model.
    """
    if not text and isinstance(given, dict):
        text = json.dumps(given)
    arguments, invalid = arguments_or_text(text)
    return {"input": arguments} if invalid is None else {"input": {}, "invalid_arguments": invalid}
