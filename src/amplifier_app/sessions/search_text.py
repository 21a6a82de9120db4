"""The text of a session that a search looks through."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from amplifier_app.base.redact import redactor
from amplifier_app.sessions.summary import (
    read_summary,
    without_surrogates,
)
from amplifier_app.sessions.tool_calls import agent_answer, blocks_in, calls_in, results_in
from amplifier_support.files import open_regular
from amplifier_support.journal import parse
from amplifier_support.text import cut_text

_MAX_RESULT = 2_000


_MAX_BYTES = 50_000_000


def search_text(path: Path) -> str:
    """The title, prompts, answers, tool inputs and the beginnings of tool results, without secrets.

    Damaged records are left out.
    """
    redact = redactor().text

    def clean(text: str) -> str:
        return redact(text.replace("\x01", "").replace("\x02", ""))

    parts, left = [clean(read_summary(path).title or "")], _MAX_BYTES
    with (
        contextlib.suppress(OSError),
        open(open_regular(path / "transcript.jsonl", os.O_RDONLY), "rb") as file,
    ):
        for line in file:
            left -= len(line)
            record = parse(line) if left >= 0 else None
            if record is not None and record.get("role") not in ("system", "developer"):
                # One by one: of all of them at once, several copies would be in memory.
                parts += map(clean, _texts(record))
    return without_surrogates("\n".join(filter(None, parts)))


def _texts(message: dict[str, Any]) -> Iterator[str]:
    results = results_in(message)
    content = message.get("content")
    if isinstance(content, str) and not results:
        yield content
    for block in blocks_in(message, "text"):
        yield str(block.get("text", ""))
    for call in calls_in(message):
        yield f"{call.name} {as_text(call.input)}"
    for _, result in results:
        text = agent_answer(result) or as_text(result)
        # The mark says that the last word may be a part of a token.
        yield cut_text(text, _MAX_RESULT)


def as_text(value: Any) -> str:
    """A tool's input or result as text: of blocks their texts, of other data its JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    blocks = cast("list[Any]", value) if isinstance(value, list) else []
    if blocks and all(isinstance(block, dict) and "type" in block for block in blocks):
        texts = [str(block.get("text", f"({block['type']})")) for block in blocks]
        return "\n".join(texts)
    return json.dumps(value, ensure_ascii=False, default=str)
