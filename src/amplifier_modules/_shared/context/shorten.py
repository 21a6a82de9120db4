"""Shortened copies of messages that are too large for a request; the originals do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from amplifier_modules._shared.history.values import as_json_text
from amplifier_modules._shared.providers.tokens import PER_IMAGE, estimate_text

LEAST = 64
"""Tokens below which a text is not shortened further."""

_NOTE = "\n[... {count:,} characters removed to fit the context window ...]\n"
_NOTE_CHARS = 80
_IMAGES = ("image", "image_url", "input_image")


def share(sizes: Sequence[int], room: int) -> int:
    """The cap at which `sizes`, each cut to it, add up to at most `room` (never below `LEAST`).

    Sizes below the cap leave their share to larger ones.
    """
    left, cap = room, 0
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        cap = left // (len(ordered) - position)
        if size > cap:
            return max(cap, LEAST)
        left -= size
    return max(cap, LEAST, ordered[-1] if ordered else 0)


def shortenable(message: Mapping[str, Any] | BaseModel) -> int:
    """Estimated tokens of the message's text and images, which may be cut."""
    return _size(_plain(message).get("content"))


def shorten(message: Mapping[str, Any] | BaseModel, tokens: int) -> dict[str, Any]:
    """A copy whose text and images take at most about `tokens`.

    Text keeps its beginning and its end, with a note in between on how much is missing. Thinking
    and tool calls are never changed.
    """
    plain = _plain(message)
    return {**plain, "content": _cut(plain.get("content"), tokens)}


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    return dict(cast("Mapping[str, Any]", value))


def _size(content: object) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return estimate_text(content)
    if not isinstance(content, (list, tuple)):
        return estimate_text(as_json_text(content))
    return sum(_block_size(_plain_block(block)) for block in cast("list[object]", content))


def _block_size(block: Mapping[str, Any]) -> int:
    kind = block.get("type")
    if kind == "text":
        return _size(block.get("text"))
    if kind in _IMAGES:
        return PER_IMAGE
    return _size(block.get(_payload_key(block))) if kind == "tool_result" else 0


def _cut(content: object, tokens: int) -> Any:
    if isinstance(content, str):
        return cut_text(content, tokens)
    if not isinstance(content, (list, tuple)):
        return cut_text(as_json_text(content), tokens)
    blocks = [_plain_block(block) for block in cast("list[object]", content)]
    reserved = sum(min(_block_size(block), LEAST) for block in blocks)
    left = tokens
    for position, block in enumerate(blocks):
        # The first blocks get what they need, but each later one its minimum.
        reserved -= min(_block_size(block), LEAST)
        blocks[position] = _cut_block(block, max(0, left - reserved))
        left -= _block_size(blocks[position])
    return blocks


def _cut_block(block: dict[str, Any], tokens: int) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {**block, "text": cut_text(block["text"], tokens)}
    if kind in _IMAGES and tokens < PER_IMAGE:
        return {"type": "text", "text": "[image removed to fit the context window]"}
    if kind == "tool_result":
        key = _payload_key(block)
        return {**block, key: _cut(block.get(key), tokens)} if block.get(key) else block
    return block


def cut_text(text: str, tokens: int) -> str:
    """`text` in about `tokens`: two thirds from its beginning, one third from its end."""
    estimate = estimate_text(text)
    if estimate <= max(tokens, LEAST):
        return text
    # In scripts with several bytes per character, the same tokens hold fewer characters.
    room = max(len(text) * max(tokens, LEAST) // estimate - _NOTE_CHARS, LEAST)
    head, tail = room * 2 // 3, room // 3
    return text[:head] + _NOTE.format(count=len(text) - head - tail) + text[len(text) - tail :]


def _plain_block(block: object) -> dict[str, Any]:
    if isinstance(block, (Mapping, BaseModel)):
        return _plain(block)
    return {"type": "text", "text": str(block)}


def _payload_key(block: Mapping[str, Any]) -> str:
    return "output" if "output" in block else "content"
