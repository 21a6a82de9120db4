"""Deltas that arrive together become one event; what a provider says does not change by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amplifier_core.llm_errors import StreamError
from amplifier_modules._shared.providers.chat_stream import merge_deltas


def delta(index: int, text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "block_type": kind, "delta": text}


def start(index: int) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "block_type": "text"}


def test_successive_deltas_of_a_block_are_one() -> None:
    chunks = [start(0), delta(0, "a"), delta(0, "b"), start(1), delta(1, "c"), delta(0, "d")]
    assert [*merge_deltas(chunks)] == [start(0), delta(0, "ab"), start(1), delta(1, "c"), chunks[5]]
    assert chunks[1]["delta"] == "a"


def test_deltas_before_an_error_are_passed_on() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield delta(0, "a")
        yield delta(0, "b")
        raise StreamError("broken")

    merged = merge_deltas(broken())
    assert next(merged) == delta(0, "ab")
    with pytest.raises(StreamError, match="broken"):
        next(merged)
