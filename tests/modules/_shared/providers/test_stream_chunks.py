"""Deltas that arrive together become one event; what a provider says does not change by that."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.providers.answer_stream import merge_deltas


def delta(index: int, text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "block_type": kind, "delta": text}


def start(index: int) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "block_type": "text"}


def test_successive_deltas_of_a_block_are_one() -> None:
    chunks = [start(0), delta(0, "a"), delta(0, "b"), start(1), delta(1, "c"), delta(0, "d")]
    assert merge_deltas(chunks) == [start(0), delta(0, "ab"), start(1), delta(1, "c"), chunks[5]]
    assert chunks[1]["delta"] == "a"
