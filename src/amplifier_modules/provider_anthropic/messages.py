"""Convert messages for the Messages API and set cache breakpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from amplifier_core.message_models import Message
from amplifier_modules._shared.history import portable_id

Block = dict[str, Any]

_DATA_URL = re.compile(r"data:(?P<media_type>image/[\w.+-]+);base64,(?P<data>.*)", re.DOTALL)
_SYSTEM_ROLES = frozenset({"system", "developer"})


def split_system(messages: list[Message]) -> tuple[list[Block], list[Message]]:
    """The system prompt's blocks, from the leading messages, and the conversation after them."""
    begin = next(
        (at for at, m in enumerate(messages) if m.role not in _SYSTEM_ROLES), len(messages)
    )
    system = [block for message in messages[:begin] for block in _text_blocks(message)]
    return system, messages[begin:]


def conversation(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages for the API in user and assistant turns; consecutive messages of a role are joined.

    Tool results become blocks of a user message. A system message within the conversation becomes a
    marked text in the user's turn at its place: moving it to the front would change the start of
    every later request and so lose the prompt cache.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def mark_for_caching(
    system: list[Block], tools: list[Block], turns: list[dict[str, Any]], ttl: str | None
) -> None:
    """Set the four breakpoints a request may have: tools, system, and two in the conversation.

    The one at the end writes the cache for the next request; the one on the previous user message
    reads what the last request wrote, even if the API's lookback is exceeded.

    Args:
        ttl: `"1h"` for the longer life; None for the usual 5 minutes.
    """
    mark = {"type": "ephemeral", "ttl": ttl} if ttl else {"type": "ephemeral"}
    for blocks in (tools, system):
        if blocks:
            blocks[-1]["cache_control"] = mark
    users = [turn for turn in turns if turn["role"] == "user"]
    for turn in users[-2:]:
        turn["content"][-1]["cache_control"] = mark


def _blocks(message: Message) -> list[Block]:
    if message.role == "tool":
        return [_tool_result(message)]
    if message.role in _SYSTEM_ROLES:
        notes = _text_blocks(message)
        return [_text(f"<system-reminder>\n{note['text']}\n</system-reminder>") for note in notes]
    content = message.content
    if isinstance(content, str):
        if message.role == "assistant" and message.get("prefill"):
            content = content.rstrip()  # the API refuses an answer's beginning that ends in space
        return [] if not content or content.isspace() else [_text(content)]
    return [wire for block in content if (wire := _block(block)) is not None]


def _block(block: Any) -> Block | None:
    match block.type:
        case "text":
            return _text(block.text) if block.text.strip() else None
        case "thinking":
            if block.signature is None:
                return None
            return {
                "type": "thinking",
                "thinking": block.thinking,
                "signature": block.signature,
            }
        case "redacted_thinking":
            return {"type": "redacted_thinking", "data": block.data}
        case "tool_call":
            return {
                "type": "tool_use",
                "id": portable_id(block.id),
                "name": portable_id(block.name),
                "input": block.input,
            }
        case "image":
            return {"type": "image", "source": _image_source(block.source)}
        case _:
            return None  # another vendor's reasoning


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _text_blocks(message: Message) -> list[Block]:
    content = message.content
    texts = (
        [content]
        if isinstance(content, str)
        else [block.text for block in content if block.type == "text"]
    )
    return [_text(text) for text in texts if text.strip()]


def _tool_result(message: Message) -> Block:
    content = message.content
    result: Block = {
        "type": "tool_result",
        "tool_use_id": portable_id(message.tool_call_id or ""),
    }
    if isinstance(content, str):
        result["content"] = content
    else:
        result["content"] = [wire for block in content if (wire := _block(block)) is not None]
    # The API accepts no images in a result that is marked as an error.
    if message.get("is_error") and not _has_image(result["content"]):
        result["is_error"] = True
    return result


def _has_image(content: Any) -> bool:
    return isinstance(content, list) and any(
        block["type"] == "image" for block in cast("list[Block]", content)
    )


def _image_source(source: dict[str, Any]) -> dict[str, Any]:
    """`{type: base64, media_type, data}`, `{type: url, url}` or `{type: file, file_id}`, no more."""
    if data_url := _DATA_URL.fullmatch(source.get("url", "")):
        return {"type": "base64", **data_url.groupdict()}
    kind = source.get("type") or ("url" if "url" in source else "base64")
    keys = {"url": ("url",), "file": ("file_id",)}.get(kind, ("media_type", "data"))
    return {"type": kind, **{key: source[key] for key in keys if key in source}}
