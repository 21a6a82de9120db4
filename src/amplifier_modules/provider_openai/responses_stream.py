"""Assemble a response of the Responses API from the events of its stream.

Each item of the output becomes blocks: a message one for each part, a function call and a reasoning
item one each. Reasoning is shown as thinking while it streams; what is stored is the item itself,
to be sent back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, cast

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_core.message_models import Usage
from amplifier_modules._shared.history import arguments_or_text
from amplifier_modules._shared.history.values import is_clean
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.http.event_stream import describe_invalid_event, read_event, text_in
from amplifier_modules._shared.providers.chat_stream import Chunk, StreamedBlock, bytes_in
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import token_count, token_counts

Item = dict[str, Any]

_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed"))
_TEXTS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "tool_call",
}
_KINDS = {"reasoning": "thinking", "function_call": "tool_call"}
_BETWEEN_SUMMARIES = "\n\n"
_MAX_TYPE = 100
"""Characters of the name of an unknown item type that are kept."""


class Key(NamedTuple):
    """The position of a block in the output: its item, and the part of a message."""

    item: int
    part: int = 0


class ResponsesStream:
    """Turn the `data` of each event into chunks and, at the end, into the parts of a response.

    Args:
        provider: For error messages.
        model: Model that was asked.
        names: Names of the offered tools by the names that were sent.

    Attributes:
        response: The service's last report on the whole response: id, model, status, usage.
        ended: Whether the response has ended, complete or cut short.
        omitted: Types of output items that the kernel does not support, left out.
        refused: Whether the model refused.
    """

    def __init__(self, *, provider: str, model: str | None, names: Mapping[str, str]) -> None:
        self.response: Item = {}
        self.ended = False
        self.omitted: list[str] = []
        self.refused = False
        self._provider = provider
        self._model = model
        self._names = names
        self._blocks: list[StreamedBlock] = []
        self._open: dict[Key, StreamedBlock] = {}
        self._finished: dict[int, dict[str, Any]] = {}

    def feed(self, data: str) -> list[Chunk]:
        """The chunks for one event.

        Raises:
            LLMError: The event is an error or invalid, or reports that the response failed.
        """
        try:
            event = read_event(data)
        except ValueError as error:
            raise self._broken("sent an event that is not JSON") from error
        if not isinstance(event, dict):
            raise self._broken("sent an event that is not a JSON object", retryable=False)
        pieces: list[Chunk] = []
        try:
            self._take(cast("Item", event), pieces)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._broken(f"sent {describe_invalid_event(error)}", retryable=False) from error
        return pieces

    def take_response(self, response: Mapping[str, Any]) -> list[Chunk]:
        """The chunks for a response that came whole. Raises as `feed` does."""
        pieces: list[Chunk] = []
        try:
            for index, item in enumerate(response["output"]):
                done = {"type": "response.output_item.done", "item": item, "output_index": index}
                self._take(done, pieces)
            kind = f"response.{response['status']}"
            if kind not in _ENDS:
                raise self._to_error(response.get("error"))
            self._take({"type": kind, "response": response}, pieces)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._broken(f"sent {describe_invalid_event(error)}", retryable=False) from error
        return pieces

    @property
    def content(self) -> list[dict[str, Any]]:
        """The finished blocks, in the order they began."""
        return [self._finished[index] for index in sorted(self._finished)]

    def written(self) -> int:
        """Bytes of the text that has come."""
        return bytes_in(self._blocks)

    @property
    def stop_reason(self) -> str:
        """The service's own reason for the end of the response."""
        details = self.response.get("incomplete_details")
        reason = cast("Item", details).get("reason") if isinstance(details, dict) else None
        for given in (reason, self.response.get("status")):
            if isinstance(given, str) and given:
                return given
        return "completed"

    @property
    def finish_reason(self) -> str:
        """The same in the kernel's terms."""
        if self.refused or self.stop_reason == "content_filter":
            return "content_filter"
        if self.response.get("status") == "incomplete":
            return "length"
        calls = any(block["type"] == "tool_call" for block in self.content)
        return "tool_calls" if calls else "stop"

    # -- events ------------------------------------------------------------------------------

    def _take(self, event: Item, pieces: list[Chunk]) -> None:
        kind = event["type"]
        if kind in _TEXTS:
            self._delta(event, _TEXTS[kind], pieces)
        elif kind == "response.output_item.added":
            self._handle_added(event["item"], Key(event["output_index"]), pieces)
        elif kind == "response.reasoning_summary_part.added":
            block = self._open.get(Key(event["output_index"]))
            if block is not None and block.texts:
                pieces.append(block.delta(_BETWEEN_SUMMARIES))
        elif kind == "response.output_item.done":
            self._handle_done(event["item"], event["output_index"], pieces)
        elif kind in ("response.created", "response.in_progress"):
            self.response = _response_in(event)
        elif kind in _ENDS:
            self.response = _response_in(event)
            if self.response.get("status") in ("failed", "cancelled") or kind.endswith("failed"):
                raise self._to_error(self.response.get("error"))
            self._end_the_rest(pieces)
            self.ended = True
        elif kind == "error":
            raise self._to_error(event.get("error") or event)

    def _handle_added(self, item: Item, key: Key, pieces: list[Chunk]) -> None:
        kind = _KINDS.get(item["type"])
        if kind is None:
            return  # a message begins with its first part
        block = self._start(key, kind)
        if kind == "tool_call":
            given, name = item.get("call_id"), item.get("name")
            block.id = given if isinstance(given, str) and given else _new_id()
            block.name = self._names.get(name, name) if isinstance(name, str) else ""
        pieces.append(block.start())

    def _delta(self, event: Item, kind: str, pieces: list[Chunk]) -> None:
        key = Key(event["output_index"], event["content_index"] if kind == "text" else 0)
        block = self._open.get(key)
        if block is None:
            if kind == "tool_call":
                return  # of an item that never began
            block = self._start(key, kind)
            pieces.append(block.start())
        if text := text_in(event, "delta"):
            pieces.append(block.delta(text))

    def _handle_done(self, item: Item, at: int, pieces: list[Chunk]) -> None:
        if item["type"] == "message":
            for part, content in enumerate(item.get("content") or ()):
                finished = self._message_part(item, content)
                if finished is not None:
                    self._end(Key(at, part), "text", finished, finished["text"], pieces)
        elif item["type"] == "reasoning":
            texts = [text_in(p, "text") for p in item.get("summary") or item.get("content") or ()]
            finished = _reasoning_block(item)
            self._end(Key(at), "thinking", finished, _BETWEEN_SUMMARIES.join(texts), pieces)
        elif item["type"] == "function_call":
            if Key(at) not in self._open:
                self._handle_added(item, Key(at), pieces)
            text = text_in(item, "arguments")
            self._end(Key(at), "tool_call", _call_block(self._open[Key(at)], text), text, pieces)
        else:
            self.omitted.append(str(item["type"])[:_MAX_TYPE])

    def _message_part(self, item: Item, content: Item) -> dict[str, Any] | None:
        phase = {"phase": item["phase"]} if isinstance(item.get("phase"), str) else {}
        if content["type"] == "refusal":
            self.refused = True
            return {"type": "text", "text": text_in(content, "refusal"), "refusal": True, **phase}
        if content["type"] != "output_text":
            return None
        annotations = content.get("annotations")
        cited = {"citations": annotations} if annotations and is_clean(annotations) else {}
        return {"type": "text", "text": text_in(content, "text"), **cited, **phase}

    # -- blocks ------------------------------------------------------------------------------

    def _start(self, key: Key, kind: str) -> StreamedBlock:
        block = self._open[key] = StreamedBlock(len(self._blocks), kind)
        self._blocks.append(block)
        return block

    def _end(
        self, key: Key, kind: str, finished: dict[str, Any] | None, text: str, pieces: list[Chunk]
    ) -> None:
        block = self._open.pop(key, None)
        if block is None:
            block = self._start(key, kind)
            del self._open[key]
            pieces.append(block.start())
        if text and not block.texts:  # a service that sends items whole
            pieces.append(block.delta(text))
        if finished is not None:
            self._finished[block.index] = finished
        shown = finished
        if kind == "thinking":
            shown = {"type": "thinking", "thinking": block.text}
        pieces.append(block.end(shown))

    def _end_the_rest(self, pieces: list[Chunk]) -> None:
        """End the blocks whose items the service did not end, as in a response that was cut off."""
        for key, block in list(self._open.items()):
            text = block.text
            finished: dict[str, Any] | None = {"type": "text", "text": text}
            if block.kind == "tool_call":
                finished = _call_block(block, text)
            elif block.kind == "thinking":
                finished = None  # Half a reasoning item is refused when it is sent back.
            self._end(key, block.kind, finished, text, pieces)

    # -- errors ------------------------------------------------------------------------------

    def _to_error(self, error: Any) -> LLMError:
        details: Item = dict(to_mapping(error))
        code = str(details.get("code") or "")
        if code.startswith(("invalid_", "image_", "unsupported_", "empty_")):
            # Error codes about the request's content; the API gives no type with them.
            details["type"] = "invalid_request_error"
        if code.endswith("_policy") or "policy_violation" in code:
            details["code"] = "content_policy_violation"
        details.pop("sequence_number", None)
        return error_for_body({"error": details}, provider=self._provider, model=self._model)

    def _broken(self, what: str, *, retryable: bool = True) -> StreamError:
        return StreamError(
            f"{self._provider} {what}",
            provider=self._provider,
            model=self._model,
            retryable=retryable,
        )


def read_usage(raw: Mapping[str, Any] | None) -> Usage | None:
    """The service's counts in the kernel's terms; None if there are none or they are not valid."""
    counts = token_counts(raw, "input_tokens", "output_tokens") if raw else None
    if raw is None or counts is None:
        return None
    prompt, output = counts
    read, written = raw.get("input_tokens_details"), raw.get("output_tokens_details")
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=token_count(raw.get("total_tokens")) or prompt + output,
        reasoning_tokens=_detail(written, "reasoning_tokens"),
        cache_read_tokens=_detail(read, "cached_tokens"),
        cache_write_tokens=_detail(read, "cache_write_tokens"),
    )


def _detail(counts: object, name: str) -> int | None:
    return token_count(counts.get(name)) if isinstance(counts, dict) else None


def _response_in(event: Item) -> Item:
    found = event["response"]
    if not isinstance(found, dict):
        raise TypeError("response")
    return cast("Item", found)


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _reasoning_block(item: Item) -> dict[str, Any] | None:
    """The item as it is sent back; None if the service could not have sent it."""
    block = {
        "type": "reasoning",
        "id": item.get("id"),
        "summary": item.get("summary") or [],
        "content": item.get("content") or [],
        "encrypted_content": item.get("encrypted_content"),
    }
    opaque = (block["id"], block["encrypted_content"])
    valid = all(value is None or isinstance(value, str) for value in opaque)
    # What is encrypted belongs to its item.
    valid = valid and bool(block["id"] or not block["encrypted_content"])
    kinds = ((block["summary"], "summary_text"), (block["content"], "reasoning_text"))
    for parts, kind in kinds:
        valid = valid and isinstance(parts, list) and all(_is_part(part, kind) for part in parts)
    if not valid or not is_clean(block):
        return None
    return {key: value for key, value in block.items() if value is not None}


def _is_part(part: object, kind: str) -> bool:
    fields = cast("Item", part) if isinstance(part, dict) else {}
    return fields.get("type") == kind and isinstance(fields.get("text"), str)


def _call_block(block: StreamedBlock, text: str) -> dict[str, Any]:
    """The call; invalid arguments are left for the loop to report to the model."""
    arguments, invalid = arguments_or_text(text)
    call_id = block.id or _new_id()
    call = {"type": "tool_call", "id": call_id, "name": block.name, "input": arguments}
    return call if invalid is None else {**call, "invalid_arguments": invalid}
