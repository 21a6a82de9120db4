"""The chunks of a streamed answer; deltas that arrive together are merged.

Every delta becomes an event of the session, with its hooks, and costs several times what it takes to
read it. Deltas wait for each other only if they arrive faster than they are handled: one that arrives
alone is passed on alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from amplifier_core.llm_errors import LLMError
from amplifier_modules._shared.providers.tokens import measure

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
