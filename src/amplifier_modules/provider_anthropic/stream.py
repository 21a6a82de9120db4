"""Assemble a response from the events of a Messages stream.

The hot path of the provider: it runs once per delta. Text is collected in pieces and joined when
its block ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from amplifier_modules._shared.history.values import is_clean
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.http.event_stream import text_in
from amplifier_modules._shared.providers.answer_stream import (
    AnswerStream,
    BlockChunk,
    StreamedBlock,
)

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

    def __init__(self, index: int, kind: str, content: dict[str, Any], **call: str) -> None:
        super().__init__(index, kind, **call)
        self.given = content
        signature = content.get("signature")
        self.signature = signature if isinstance(signature, str) and signature else None
        self.citations: list[Any] = []


class StreamAssembly(AnswerStream):
    """An answer of the Messages API.

    Attributes:
        message: The vendor's message without its content, once it has begun.
        content: The finished blocks, as kernel blocks in their dict form.
        omitted: Types of blocks that the kernel does not support, left out.
        usage: The vendor's counts; later ones replace earlier ones.
        stop: What `message_delta` said: `stop_reason`, `stop_sequence`, `stop_details`.
        request_id: The service's name for the request, for its support.
    """

    not_json = "an event that is not JSON: {}"

    def __init__(
        self, *, provider: str, model: str | None, names: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(provider=provider, model=model, names=names)
        self.message: dict[str, Any] = {}
        self.content: list[dict[str, Any]] = []
        self.omitted: list[str] = []
        self.usage: dict[str, Any] = {}
        self.stop: dict[str, Any] = {}
        self.request_id: str | None = None
        self._open: dict[int, _Open] = {}

    def events_in(self, answer: Mapping[str, Any]) -> Iterator[Event]:
        yield {"type": "message_start", "message": answer}
        content = answer.get("content")
        if not isinstance(content, list):
            raise self._broken("sent a message without content", retryable=False)
        for index, block in enumerate(cast("list[Any]", content)):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for citation in block.get("citations") or () if isinstance(block, dict) else ():
                delta = {"type": "citations_delta", "citation": citation}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ending = {key: answer[key] for key in _OF_THE_END if key in answer}
        yield {"type": "message_delta", "delta": ending, "usage": answer.get("usage")}
        yield {"type": "message_stop"}

    def _take(self, event: Event, chunks: list[BlockChunk]) -> None:
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
                block.write(text, chunks)
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
            self.is_whole = self.has_ended = True
        elif kind == "error":
            raise error_for_body(event, provider=self._provider, model=self._model)

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

    def _start(self, event: Event, chunks: list[BlockChunk]) -> None:
        content = event["content_block"]
        kind = _BLOCK_TYPES.get(content["type"])
        if kind is None:
            self.omitted.append(str(content["type"])[:_MAX_TYPE])
            return
        call: dict[str, str] = {}
        if kind == "tool_call":
            call_id = self._call_id(content.get("id"), "toolu")
            call = {"id": call_id, "name": self._tool_name(content.get("name"))}
        elif kind == "redacted_thinking":
            text_in(content, "data")
        block = _Open(len(self._blocks), kind, content, **call)
        self._blocks.append(block)
        self._open[event["index"]] = block
        chunks.append(block.start())
        if text := content.get(kind) and text_in(content, kind):  # what comes with the start
            block.write(text, chunks)

    def _finish(self, block: _Open | None, chunks: list[BlockChunk]) -> None:
        if block is None:
            return
        finished = _finish_block(block)
        self.content.append(finished)
        chunks.append(block.end(finished))


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
            if not text and isinstance(arguments := block.given.get("input"), dict):
                text = json.dumps(arguments)
            finished = block.call(text)
    return finished
