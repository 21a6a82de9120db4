"""A streamed answer, assembled from its events into chunks and, at the end, into the parts of a response.

Every delta becomes an event of the session, with its hooks, and costs several times what it takes to
read it. Deltas that arrive together are therefore merged; one that arrives alone is passed on alone.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_core.message_models import ToolCall
from amplifier_modules._shared.history.values import arguments_or_text
from amplifier_modules._shared.http.event_stream import (
    SSEStream,
    describe_invalid_event,
    read_event,
)
from amplifier_modules._shared.providers.tokens import measure

BlockChunk = dict[str, Any]
"""A chunk of a stream other than the last: the start, a delta or the end of a content block."""

_DELTA = "content_block_delta"
_DONE = "[DONE]"
"""The mark of the end of a stream in Chat Completions and of some other servers."""


class StreamedBlock:
    """A content block that is being received.

    Attributes:
        index: Its position in the answer.
        kind: Its type.
        texts: The pieces of its text.
        id: The id of a call.
        name: The tool that is called.
    """

    __slots__ = ("_last", "id", "index", "kind", "name", "texts")

    def __init__(self, index: int, kind: str, *, id: str = "", name: str = "") -> None:
        self.index = index
        self.kind = kind
        self.texts: list[str] = []
        self.id = id
        self.name = name
        self._last: BlockChunk = {}

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def start(self) -> BlockChunk:
        """The chunk that begins it."""
        chunk = {"type": "content_block_start", "index": self.index, "block_type": self.kind}
        return chunk | {"id": self.id, "name": self.name} if self.kind == "tool_call" else chunk

    def delta(self, text: str) -> BlockChunk:
        """Add a piece; returns its chunk."""
        self.texts.append(text)
        return {"type": _DELTA, "index": self.index, "block_type": self.kind, "delta": text}

    def write(self, text: str, chunks: list[BlockChunk]) -> None:
        """Add a piece to its last chunk if that is the last of `chunks`, otherwise as a new one.

        The delta is a list of pieces until `AnswerStream.take` joins them.
        """
        if chunks and chunks[-1] is self._last:
            self.texts.append(text)
            self._last["delta"].append(text)
        else:
            self._last = self.delta(text)
            self._last["delta"] = [text]
            chunks.append(self._last)

    def end(self, block: dict[str, Any] | None) -> BlockChunk:
        """The chunk that ends it, with the finished block."""
        about = {"index": self.index, "block_type": self.kind}
        return {"type": "content_block_end", **about, "block": block}

    def call(self, text: str) -> dict[str, Any]:
        """The finished block of a call; invalid arguments are left for the loop to report to the model."""
        arguments, invalid = arguments_or_text(text)
        call = {"type": "tool_call", "id": self.id, "name": self.name, "input": arguments}
        return call if invalid is None else {**call, "invalid_arguments": invalid}


class AnswerStream(ABC):
    """Turn the events of an answer into chunks, and collect the parts of the response.

    Args:
        provider: For error messages.
        model: Model that was asked.
        names: Names of the offered tools by the names that were sent.

    Attributes:
        has_ended: Whether nothing more is to be read.
        is_whole: Whether the answer is complete, or was cut short by the service itself.
    """

    not_json: ClassVar[str] = "an event that is not JSON"
    """The report of such an event; `{}` is its beginning."""

    def __init__(
        self, *, provider: str, model: str | None, names: Mapping[str, str] | None = None
    ) -> None:
        self.has_ended = False
        self.is_whole = False
        self._provider = provider
        self._model = model
        self._names = names or {}
        self._blocks: list[Any] = []

    @abstractmethod
    def _take(self, event: Any, chunks: list[BlockChunk]) -> None:
        """Add the chunks for one event.

        Raises:
            LLMError: The event reports a failure.
            AttributeError, LookupError, TypeError, ValueError: It has another form than expected.
        """

    @abstractmethod
    def events_in(self, answer: Mapping[str, Any]) -> Iterable[Any]:
        """The events of an answer that came whole."""

    def close(self) -> list[BlockChunk]:
        """The ends of the blocks still open, when the stream has ended."""
        return []

    async def relay(self, stream: SSEStream) -> AsyncGenerator[list[BlockChunk]]:
        """Yield the chunks of each read, until the answer or the stream ends.

        Raises:
            LLMError: The stream broke, or an event is an error or invalid. The chunks before it
                have been yielded.
        """
        progress = True
        while not self.has_ended and (events := await stream.read(progress=progress)) is not None:
            chunks, failure = self.take(self._decoded(events))
            progress = bool(chunks)
            if chunks:
                yield chunks
            if failure is not None:
                raise failure
        if self.has_ended:
            await stream.finish()

    def take(self, events: Iterable[Any]) -> tuple[list[BlockChunk], LLMError | None]:
        """Return the chunks for decoded events, and the error that ended them."""
        chunks: list[BlockChunk] = []
        failure: LLMError | None = None
        try:
            for event in events:
                self._take(event, chunks)
        except LLMError as error:
            failure = error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # The next attempt would get the same from this service.
            failure = self._broken(f"sent {describe_invalid_event(error)}", retryable=False)
            failure.__cause__ = error
        for chunk in chunks:
            if chunk["type"] == _DELTA:
                chunk["delta"] = "".join(chunk["delta"])
        return chunks, failure

    def take_whole(self, answer: Mapping[str, Any]) -> Iterator[BlockChunk]:
        """Yield the chunks of an answer that came whole. Raises as `relay` does."""
        chunks, failure = self.take(self.events_in(answer))
        yield from chunks
        if failure is not None:
            raise failure
        yield from self.close()

    def written(self) -> int:
        """Bytes of the text that has come."""
        return sum(measure(text) for block in self._blocks for text in block.texts)

    def _decoded(self, events: Iterable[tuple[str, str]]) -> Iterator[Any]:
        for _, data in events:
            if data == _DONE:
                self.has_ended = True
                return
            try:
                event = read_event(data)
            except ValueError as error:
                what = self.not_json.format(repr(data[:200]))
                raise self._broken(f"sent {what}") from error
            if type(event) is not dict:
                raise self._broken("sent an event that is not a JSON object", retryable=False)
            yield event

    def _call_id(self, value: Any, prefix: str = "call") -> str:
        """The id of a call; a new one if the service gave none."""
        return value if isinstance(value, str) and value else f"{prefix}_{secrets.token_hex(12)}"

    def _tool_name(self, name: Any) -> str:
        """The name of the tool a call is for; empty, which no tool has, if there is none."""
        return self._names.get(name, name) if isinstance(name, str) else ""

    def _broken(self, what: str, *, retryable: bool = True) -> StreamError:
        text = f"{self._provider} {what}"
        return StreamError(text, provider=self._provider, model=self._model, retryable=retryable)


def find_tool_calls(content: list[dict[str, Any]]) -> list[ToolCall]:
    """The calls among content blocks; `invalid_arguments` stays with them."""
    calls: list[ToolCall] = []
    for block in content:
        if block["type"] == "tool_call":
            extra = {key: block[key] for key in ("invalid_arguments",) if key in block}
            # The assembled data needs no validation, nor the cost of building validators.
            call = ToolCall.model_construct(
                id=block["id"], name=block["name"], arguments=block["input"], **extra
            )
            calls.append(call)
    return calls
