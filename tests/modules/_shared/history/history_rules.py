"""What a strict vendor accepts as a conversation, written without looking at the normaliser."""

import json
from collections.abc import Iterable
from typing import Any

from amplifier_core.message_models import Message


def plain(message: Message) -> dict[str, Any]:
    """A message of a request by its blocks; what repeats them has been compared with them."""
    whole = message.model_dump(exclude_none=True)
    content = whole["content"] if isinstance(whole["content"], list) else []
    calls = [(b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_call"]
    listed = whole.pop("tool_calls", [])
    assert [(call["id"], call["tool"], call["arguments"]) for call in listed] == calls
    thoughts = [b for b in content if b["type"] == "thinking"]
    assert [whole.pop("thinking_block", None)] == (thoughts[:1] or [None])
    return whole


def violations(messages: list[Message]) -> Iterable[str]:
    """What a strict vendor would refuse; knows the rules, not the code."""
    wire = [plain(message) for message in messages]
    try:
        json.dumps(wire, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        yield f"cannot be encoded: {error}"
    spoken = [m for m in wire if m["role"] not in ("system", "developer")]
    if not spoken or spoken[0]["role"] != "user":
        yield "does not begin with a user message"
    if spoken and spoken[-1]["role"] == "assistant":
        yield "ends with an assistant message"
    expected: list[str] = []
    seen: set[str] = set()
    for message in wire:
        role, content = message["role"], message["content"]
        if role not in ("system", "developer", "user", "assistant", "tool"):
            yield f"illegal role {role}"
        if role == "tool":
            if not expected or expected.pop(0) != message["tool_call_id"]:
                yield f"result {message['tool_call_id']} is not expected here"
            continue
        if expected:
            yield f"calls {expected} have no results"
            expected = []
        if not content or (isinstance(content, str) and not content.strip()):
            yield f"empty {role} message"
        if "metadata" in message:
            yield "metadata on the wire"
        if not isinstance(content, list):
            continue
        kinds = [b["type"] for b in content]
        allowed = {"text", "thinking", "redacted_thinking", "tool_call"}
        if set(kinds) - (allowed if role == "assistant" else {"text", "image"}):
            yield f"{role} message with {kinds}"
        if kinds[-1] in ("thinking", "redacted_thinking"):
            yield "ends in thinking"
        if any(b["type"] == "text" and not b["text"].strip() for b in content):
            yield "blank text block"
        expected = [b["id"] for b in content if b["type"] == "tool_call"]
        if seen & set(expected) or len(set(expected)) < len(expected) or "" in expected:
            yield f"ids are not unique: {expected}"
        seen |= set(expected)
    if expected:
        yield f"calls {expected} have no results"
