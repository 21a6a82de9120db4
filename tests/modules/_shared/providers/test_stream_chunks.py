"""Deltas that arrive together become one event; what a provider says does not change by that."""

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
