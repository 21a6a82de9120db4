"""Merges the deltas of an answer that arrived together.

Every delta becomes an event of the session, with its hooks, and costs several times what it takes to
read it. Deltas wait for each other only if they arrive faster than they are handled: one that arrives
alone is passed on alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from amplifier_core.llm_errors import LLMError

_DELTA = "content_block_delta"


def merge_deltas(chunks: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of one read, with successive deltas of a block as one.

    Raises:
        LLMError: `chunks` raised it; the chunks before it have been yielded.
    """
    first: dict[str, Any] | None = None
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
