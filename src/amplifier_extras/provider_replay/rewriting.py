"""Rewrite text in recorded responses, even when split into pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from amplifier_extras.provider_replay.requests import Plain

Change = Callable[[str], str]


def rewrite_texts(value: Any, change: Change) -> Any:
    """Plain data with every text rewritten."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [rewrite_texts(item, change) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return {key: rewrite_texts(item, change) for key, item in held.items()}
    return value


def change_deltas(chunks: Iterable[Any], change: Change) -> None:
    """Rewrite the deltas of streamed blocks, in place.

    The text to rewrite may extend over several deltas. In such a block the first delta gets all the
    text and the others none.
    """
    blocks: dict[Any, list[Plain]] = {}
    for chunk in chunks:
        if isinstance(chunk, dict) and isinstance(cast("Plain", chunk).get("delta"), str):
            delta = cast("Plain", chunk)
            blocks.setdefault(delta.get("index"), []).append(delta)
    for deltas in blocks.values():
        text = "".join(delta["delta"] for delta in deltas)
        new = change(text)
        if new != text:
            for delta in deltas:
                delta["delta"] = ""
            deltas[0]["delta"] = new
