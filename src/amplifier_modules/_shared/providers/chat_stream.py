"""A streamed Chat Completions answer, assembled from its chunks.

Accepts what OpenAI and compatible servers send: reasoning under two names, tool calls without an
index, without an id, with the same index for all, or with arguments that are not JSON. None of that is
an error; only data that cannot be parsed at all is.

The chunks of a streamed answer; deltas that arrive together are merged.

Every delta becomes an event of the session, with its hooks, and costs several times what it takes to
read it. Deltas wait for each other only if they arrive faster than they are handled: one that arrives
alone is passed on alone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_core.message_models import ToolCall, Usage
from amplifier_modules._shared.history import arguments_or_text
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.http.event_stream import describe_invalid_event, read_event
from amplifier_modules._shared.providers.tokens import measure
from amplifier_support.fields import to_mapping
from amplifier_support.usage import token_count, token_counts

Chunk = dict[str, Any]
"""A chunk of a stream other than the last: the start, a delta or the end of a content block."""

_DELTA = "content_block_delta"


class StreamedBlock:
    """A content block that is being received.

    Attributes:
        index: Its position in the answer.
        kind: Its type.
        texts: The pieces of its text.
        id: The id of a call.
        name: The tool that is called.
    """

    __slots__ = ("id", "index", "kind", "name", "texts")

    def __init__(self, index: int, kind: str, *, id: str = "", name: str = "") -> None:
        self.index = index
        self.kind = kind
        self.texts: list[str] = []
        self.id = id
        self.name = name

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def start(self) -> Chunk:
        """The chunk that begins it."""
        chunk = {"type": "content_block_start", "index": self.index, "block_type": self.kind}
        return chunk | {"id": self.id, "name": self.name} if self.kind == "tool_call" else chunk

    def delta(self, text: str) -> Chunk:
        """Add a piece; returns its chunk."""
        self.texts.append(text)
        return {"type": _DELTA, "index": self.index, "block_type": self.kind, "delta": text}

    def end(self, block: dict[str, Any] | None) -> Chunk:
        """The chunk that ends it, with the finished block."""
        about = {"index": self.index, "block_type": self.kind}
        return {"type": "content_block_end", **about, "block": block}


def bytes_in(blocks: Iterable[StreamedBlock]) -> int:
    """Bytes of the text that has come."""
    return sum(measure(text) for block in blocks for text in block.texts)


def merge_deltas(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks of one read, with successive deltas of a block as one.

    Raises:
        LLMError: `chunks` raised it; the chunks before it have been yielded.
    """
    first: Chunk | None = None
    texts: list[str] = []
    failure: LLMError | None = None
    try:
        for chunk in chunks:
            is_delta = chunk["type"] == _DELTA
            if first is not None:
                if is_delta and chunk["index"] == first["index"]:
                    texts.append(chunk["delta"])
                    continue
                yield {**first, "delta": "".join(texts)}
                first = None
            if is_delta:
                first, texts = chunk, [chunk["delta"]]
            else:
                yield chunk
    except LLMError as error:
        failure = error
    if first is not None:
        yield {**first, "delta": "".join(texts)}
    if failure is not None:
        raise failure


FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
# The server reports that it stopped early; the partial output is not an answer.
_GAVE_UP = {"insufficient_system_resource", "error", "abort", "cancelled"}


class _Block(StreamedBlock):
    __slots__ = ("refusal",)

    def __init__(self, index: int, kind: str, *, refusal: bool = False, **call: str) -> None:
        super().__init__(index, kind, **call)
        self.refusal = refusal

    def content(self) -> dict[str, Any]:
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": self.text}
        if self.kind == "text":
            block: dict[str, Any] = {"type": "text", "text": self.text}
            return block | {"refusal": True} if self.refusal else block
        arguments, invalid = arguments_or_text(self.text)
        block = {"type": "tool_call", "id": self.id, "name": self.name, "input": arguments}
        return block if invalid is None else block | {"invalid_arguments": invalid}


class ChatStream:
    """Turns the `data` of each event into chunks, and at the end into an answer's parts.

    Args:
        provider: For error messages.
        model: Model that was asked.
        names: Names of the offered tools by the names that were sent.

    Attributes:
        finish_reason: The server's own word, once the answer is complete.
        model: What the server says answered.
        usage: The server's own object, the last one that came.
        id: The server's id of the completion.
        service_tier: What the server says it billed as.
    """

    def __init__(self, *, provider: str, model: str | None, names: Mapping[str, str]) -> None:
        self.finish_reason: str | None = None
        self.model = model
        self.usage: dict[str, Any] | None = None
        self.id: str | None = None
        self.service_tier: str | None = None
        self._provider = provider
        self._asked = model
        self._names = names
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._calls: dict[int, _Block] = {}
        self._last_call: _Block | None = None

    def feed(self, data: str) -> list[Chunk]:
        """The chunks that one event makes.

        Raises:
            LLMError: The event is an error or invalid, or reports that the server stopped early.
        """
        try:
            event = read_event(data)
        except ValueError as error:
            raise self._broken("sent an event that is not valid JSON") from error
        if not isinstance(event, dict):
            raise self._broken("sent an event that is not a JSON object", retryable=False)
        chunk = cast("dict[str, Any]", event)
        if chunk.get("error"):
            raise error_for_body(chunk, provider=self._provider, model=self._asked)
        pieces: list[Chunk] = []
        try:
            self._read(chunk, pieces)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._broken(f"sent {describe_invalid_event(error)}", retryable=False) from error
        return pieces

    def close(self) -> list[Chunk]:
        """The ends of the blocks still open, when the stream has ended."""
        ends = [self._open.end(self._open.content())] if self._open is not None else []
        self._open = None
        ends += [block.end(block.content()) for block in self._blocks if block.kind == "tool_call"]
        return ends

    def content(self) -> list[dict[str, Any]]:
        """The content blocks of the answer, in order."""
        return [block.content() for block in self._blocks]

    def written(self) -> int:
        """Bytes of the text that has come."""
        return bytes_in(self._blocks)

    def refusal(self) -> str | None:
        """The model's words if it refused."""
        return "".join(block.text for block in self._blocks if block.refusal) or None

    def _read(self, chunk: dict[str, Any], pieces: list[Chunk]) -> None:
        if self.id is None:
            given, model = chunk.get("id"), chunk.get("model")
            self.id = given if isinstance(given, str) else ""
            self.model = model if isinstance(model, str) and model else self.model
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = cast("dict[str, Any]", usage)
        if isinstance(tier := chunk.get("service_tier"), str):
            self.service_tier = tier
        for choice in chunk.get("choices") or ():
            if not choice.get("index"):
                self._read_choice(choice, pieces)

    def _read_choice(self, choice: dict[str, Any], pieces: list[Chunk]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if delta:
            if text := delta.get("reasoning_content") or delta.get("reasoning"):
                self._add_text("thinking", text, pieces)
            if text := delta.get("content"):
                self._add_text("text", text, pieces)
            if text := delta.get("refusal"):
                self._add_text("text", text, pieces, refusal=True)
            for call in delta.get("tool_calls") or ():
                self._add_call(call, pieces)
        if reason := choice.get("finish_reason"):
            if reason in _GAVE_UP:
                raise self._broken(f"stopped in the middle of its answer ({reason})")
            self.finish_reason = reason if isinstance(reason, str) else "unknown"

    def _add_text(
        self, kind: str, text: Any, pieces: list[Chunk], *, refusal: bool = False
    ) -> None:
        if not isinstance(text, str):
            text = _joined(text)
        block = self._open
        if block is None or block.kind != kind or block.refusal is not refusal:
            self._end_text(pieces)
            block = self._open = _Block(len(self._blocks), kind, refusal=refusal)
            self._blocks.append(block)
            pieces.append(block.start())
        pieces.append(block.delta(text))

    def _end_text(self, pieces: list[Chunk]) -> None:
        if self._open is not None:
            pieces.append(self._open.end(self._open.content()))
            self._open = None

    def _add_call(self, call: dict[str, Any], pieces: list[Chunk]) -> None:
        function: dict[str, Any] = call.get("function") or {}
        block = self._find_block(call, function)
        if block is None:
            self._end_text(pieces)
            given = function.get("name")
            name = given if isinstance(given, str) else ""
            block = _Block(
                len(self._blocks),
                "tool_call",
                id=self._unused_id(call.get("id")),
                name=self._names.get(name, name),
            )
            self._blocks.append(block)
            self._calls[_index(call, len(self._calls))] = self._last_call = block
            pieces.append(block.start())
        arguments = function.get("arguments")
        if arguments:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            pieces.append(block.delta(text))

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

    def _unused_id(self, given: Any) -> str:
        taken = {block.id for block in self._blocks}
        if isinstance(given, str) and given and given not in taken:
            return given
        return f"call_{secrets.token_hex(12)}"

    def _broken(self, what: str, *, retryable: bool = True) -> StreamError:
        text = f"{self._provider} {what}"
        return StreamError(text, provider=self._provider, model=self._asked, retryable=retryable)


def find_tool_calls(content: list[dict[str, Any]]) -> list[ToolCall]:
    """The calls among content blocks; `invalid_arguments` stays with them."""
    calls: list[ToolCall] = []
    for block in content:
        if block["type"] == "tool_call":
            invalid = block.get("invalid_arguments")
            extra = {} if invalid is None else {"invalid_arguments": invalid}
            call = ToolCall(id=block["id"], name=block["name"], arguments=block["input"], **extra)
            calls.append(call)
    return calls


def read_usage(raw: Mapping[str, Any] | None) -> Usage | None:
    """The server's usage object in the kernel's terms; None if there is none or it is not valid."""
    if not raw:
        return None
    counts = token_counts(raw, "prompt_tokens", "completion_tokens")
    if counts is None:
        return None
    prompt, output = counts
    read = to_mapping(raw.get("prompt_tokens_details"))
    written = to_mapping(raw.get("completion_tokens_details"))
    cached = token_count(read.get("cached_tokens"))
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=token_count(raw.get("total_tokens")) or prompt + output,
        reasoning_tokens=token_count(written.get("reasoning_tokens")),
        # DeepSeek reports what came from its cache under a name of its own.
        cache_read_tokens=token_count(raw.get("prompt_cache_hit_tokens"))
        if cached is None
        else cached,
        cache_write_tokens=token_count(read.get("cache_write_tokens")),
    )


def _index(call: dict[str, Any], default: int) -> int:
    at = call.get("index")
    return at if isinstance(at, int) else default


def _joined(parts: Any) -> str:
    """Text that came as a list of parts."""
    if not isinstance(parts, list):
        return str(parts)
    items = cast("list[Any]", parts)
    return "".join(str(item.get("text") or "") for item in items if isinstance(item, Mapping))
