"""Assemble a response from the events of a Messages stream.

The hot path of the provider: it runs once per delta. Text is collected in pieces and joined when
its block ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.http.sse import read_event

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


class _Open:
    """A content block that is being written."""

    __slots__ = ("citations", "index", "kind", "parts", "signature", "start")

    def __init__(self, index: int, kind: str, start: dict[str, Any]) -> None:
        self.index = index
        self.kind = kind
        self.start = start
        self.parts: list[str] = []
        self.signature: str | None = start.get("signature") or None
        self.citations: list[Any] = []


class StreamAssembly:
    """Process events, return chunks, and hold the final message.

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

    def __init__(self, *, provider: str, model: str | None) -> None:
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
        self._open: dict[int, _Open] = {}
        self._begun = 0

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
                if text:
                    block.parts.append(text)
                    chunks.append(
                        {
                            "type": "content_block_delta",
                            "index": block.index,
                            "block_type": block.kind,
                            "delta": text,
                        }
                    )
            elif kind == "content_block_start":
                self._start(event, chunks)
            elif kind == "content_block_stop":
                self._finish(self._open.pop(event["index"], None), chunks)
            elif kind == "message_start":
                self.message = event["message"]
                self.usage = dict(self.message.get("usage") or {})
            elif kind == "message_delta":
                self.stop |= event["delta"]
                self.usage |= {k: v for k, v in event["usage"].items() if v is not None}
            elif kind == "message_stop":
                for block in list(self._open.values()):
                    self._finish(block, chunks)
                self._open.clear()
                self.is_complete = True
            elif kind == "error":
                self.error = error_for_body(event, provider=self._provider, model=self._model)
        except (AttributeError, KeyError, TypeError) as error:
            self.error = self._broken(f"an event of an unknown shape: {error!r}")

    def _take_rare(self, delta: dict[str, Any], block: _Open) -> None:
        if delta["type"] == "signature_delta":
            block.signature = delta["signature"]
        elif delta["type"] == "citations_delta":
            block.citations.append(delta["citation"])

    def _start(self, event: Event, chunks: list[dict[str, Any]]) -> None:
        start = event["content_block"]
        kind = _BLOCK_TYPES.get(start["type"])
        if kind is None:
            self.omitted.append(start["type"])
            return
        block = _Open(self._begun, kind, start)
        self._begun += 1
        self._open[event["index"]] = block
        chunk = {"type": "content_block_start", "index": block.index, "block_type": kind}
        if kind == "tool_call":
            chunk |= {"id": start["id"], "name": start["name"]}
        chunks.append(chunk)
        if text := start.get(kind):  # text or thinking that comes with the start
            block.parts.append(text)
            delta = {**chunk, "type": "content_block_delta", "delta": text}
            chunks.append(delta)

    def _finish(self, block: _Open | None, chunks: list[dict[str, Any]]) -> None:
        if block is None:
            return
        finished = _finished(block)
        self.content.append(finished)
        chunks.append(
            {
                "type": "content_block_end",
                "index": block.index,
                "block_type": block.kind,
                "block": finished,
            }
        )

    def _broken(self, what: str) -> StreamError:
        return StreamError(
            f"{self._provider} sent {what}", provider=self._provider, model=self._model
        )


def _finished(block: _Open) -> dict[str, Any]:
    text = "".join(block.parts)
    match block.kind:
        case "text":
            finished: dict[str, Any] = {"type": "text", "text": text}
            if block.citations:
                finished["citations"] = block.citations
        case "thinking":
            finished = {"type": "thinking", "thinking": text, "signature": block.signature}
        case "redacted_thinking":
            finished = {"type": "redacted_thinking", "data": block.start["data"]}
        case _:
            finished = {"type": "tool_call", "id": block.start["id"], "name": block.start["name"]}
            finished |= read_arguments(text, block.start.get("input"))
    return finished


def read_arguments(text: str, given: Any = None) -> dict[str, Any]:
    """A tool's input from its JSON: `{"input": …}`.

    Anything but a JSON object becomes an empty input with the text as `invalid_arguments`, so that
    the loop can report it to the model.
    """
    if not text:
        return {"input": given if isinstance(given, dict) else {}}
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {"input": arguments}
    return {"input": {}, "invalid_arguments": text}
