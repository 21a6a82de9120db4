"""Deltas that arrive together become one event; what a provider says does not change by that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amplifier_modules._shared.providers.answer_stream import (
    AnswerStream,
    BlockChunk,
    StreamedBlock,
)


class Words(AnswerStream):
    """Events are `(index, word)`, or an index alone at the start of a block."""

    def _take(self, event: Any, chunks: list[BlockChunk]) -> None:
        if isinstance(event, int):
            self._blocks.append(StreamedBlock(event, "text"))
            chunks.append(self._blocks[-1].start())
        else:
            index, word = event
            self._blocks[index].write(word, chunks)

    def events_in(self, answer: Mapping[str, Any]) -> Iterable[Any]:
        return answer["events"]


def delta(index: int, text: str) -> BlockChunk:
    return {
        "type": "content_block_delta",
        "index": index,
        "block_type": "text",
        "delta": text,
    }


def start(index: int) -> BlockChunk:
    return {"type": "content_block_start", "index": index, "block_type": "text"}


def test_successive_deltas_of_a_block_are_one() -> None:
    words = Words(provider="p", model="m")
    chunks, _ = words.take([0, (0, "a"), (0, "b"), 1, (1, "c"), (0, "d"), (0, ""), (1, "e")])
    assert chunks == [
        *(start(0), delta(0, "ab"), start(1)),
        *(delta(1, "c"), delta(0, "d"), delta(1, "e")),
    ]
    assert words.take([(1, "f"), (1, "g")]) == ([delta(1, "fg")], None)
    assert [block.text for block in words._blocks] == ["abd", "cefg"]


def test_what_came_before_an_invalid_event_is_kept() -> None:
    chunks, failure = Words(provider="p", model="m").take([0, (0, "a"), (0, "b"), None])
    assert chunks == [start(0), delta(0, "ab")]
    assert failure is not None
