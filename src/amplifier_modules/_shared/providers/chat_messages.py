"""Requests in the Chat Completions format, which many servers speak and few speak the same.

Takes a normalised `ChatRequest` and writes what all of them accept: text as plain strings where
there is nothing else, images as data URLs, tool results as text with their images in a user message
behind them, names and ids in the letters and lengths the API allows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from amplifier_core.message_models import ChatRequest, Message, ToolSpec
from amplifier_modules._shared.history import portable_id
from amplifier_support.fields import mapping_of

_LONGEST_ID = 40
_PERSON = re.compile(r"[^\s<|\\/>]{1,64}")
_IMAGES_FOLLOW = "[the images of this result are in the next message]"


def wire_messages(messages: Sequence[Message], *, developer_role: bool) -> list[dict[str, Any]]:
    """The conversation as the API's `messages`.

    Args:
        messages: Normalised: each call is answered directly behind its message.
        developer_role: The server knows the role ``developer``; else it becomes ``system``.
    """
    wire: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and pending:
            wire.append({"role": "user", "content": pending})
            pending = []
        if message.role in ("tool", "function"):
            wire.append(_tool_message(message, pending))
        elif message.role == "assistant":
            wire.append(_assistant_message(message))
        elif message.role == "user":
            wire.append(_user_message(message))
        else:
            role = message.role if developer_role else "system"
            wire.append({"role": role, "content": _text_of(message.content)})
    if pending:
        wire.append({"role": "user", "content": pending})
    return wire


def wire_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """The tools as the API's `tools`."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def wire_tool_choice(choice: str | Mapping[str, Any]) -> tuple[str | dict[str, Any], bool]:
    """The API's `tool_choice`, and whether parallel calls are allowed.

    Understood are the words ``auto``, ``none``, ``required`` and ``any``, the name of a tool, and
    both vendors' mappings (``{"type": "function", "function": {"name": …}}`` and
    ``{"type": "tool", "name": …, "disable_parallel_tool_use": …}``).
    """
    if isinstance(choice, str):
        return _choice_word(choice), True
    parallel = not choice.get("disable_parallel_tool_use")
    kind = str(choice.get("type", "auto"))
    name = (mapping_of(choice.get("function")) or choice).get("name")
    if kind in ("tool", "function") and isinstance(name, str):
        return {"type": "function", "function": {"name": portable_id(name)}}, parallel
    return (_choice_word(kind) if kind in _WORDS else dict(choice)), parallel


def wire_response_format(request: ChatRequest) -> dict[str, Any] | None:
    """The API's `response_format`; None for free text."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json":
        return {"type": "json_object"}
    given = wanted.json_schema
    # Some callers hand over the API's own wrapping of name and schema.
    inner = given.get("schema")
    wrapped = isinstance(inner, Mapping) and isinstance(given.get("name"), str)
    schema: dict[str, Any] = dict(cast("Mapping[str, Any]", inner)) if wrapped else given
    name = str(given["name"] if wrapped else schema.get("title") or "response")
    described: dict[str, Any] = {"name": portable_id(name), "schema": schema}
    strict = wanted.strict if wanted.strict is not None else given.get("strict")
    if wrapped and isinstance(strict, bool):
        described["strict"] = strict
    elif wanted.strict is not None:
        described["strict"] = wanted.strict
    return {"type": "json_schema", "json_schema": described}


def wire_call_id(call_id: str) -> str:
    """`call_id` in the letters and length the API allows; equal ids stay equal."""
    portable = portable_id(call_id)
    if len(portable) <= _LONGEST_ID:
        return portable
    return f"{portable[: _LONGEST_ID - 9]}_{_digest(call_id)}"


_WORDS = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


def _choice_word(word: str) -> str | dict[str, Any]:
    known = _WORDS.get(word)
    return known or {"type": "function", "function": {"name": portable_id(word)}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _function(tool: ToolSpec) -> dict[str, Any]:
    schema = tool.parameters or {}
    if schema.get("type") != "object":
        schema = {**schema, "type": "object"}
    if "properties" not in schema:
        schema = {**schema, "properties": {}}
    function: dict[str, Any] = {"name": portable_id(tool.name), "parameters": schema}
    if tool.description:
        function["description"] = tool.description
    if tool.get("strict") is not None:
        function["strict"] = tool.get("strict")
    return function


def _user_message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if isinstance(message.content, str):
        content: str | list[dict[str, Any]] = message.content
    else:
        for block in message.content:
            if block.type == "text":
                parts.append({"type": "text", "text": block.text})
            elif block.type == "image":
                parts.append(_image_part(block.source))
        only_text = all(part["type"] == "text" for part in parts)
        content = "\n".join(part["text"] for part in parts) if only_text else parts
    wire: dict[str, Any] = {"role": "user", "content": content}
    if message.name and _PERSON.fullmatch(message.name):
        wire["name"] = message.name
    return wire


def _assistant_message(message: Message) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    calls = [
        {
            "id": wire_call_id(block.id),
            "type": "function",
            "function": {
                "name": portable_id(block.name),
                "arguments": json.dumps(block.input, ensure_ascii=False, separators=(",", ":")),
            },
        }
        for block in message.content
        if block.type == "tool_call"
    ]
    text = _text_of(message.content)
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _tool_message(message: Message, images: list[dict[str, Any]]) -> dict[str, Any]:
    text = _text_of(message.content)
    if not isinstance(message.content, str):
        shown = [_image_part(block.source) for block in message.content if block.type == "image"]
        if shown:
            text = f"{text}\n{_IMAGES_FOLLOW}" if text else _IMAGES_FOLLOW
            images.append({"type": "text", "text": f"[images from {message.name or 'a tool'}]"})
            images += shown
    return {
        "role": "tool",
        "tool_call_id": wire_call_id(message.tool_call_id or ""),
        "content": text,
    }


def _text_of(content: str | Sequence[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if block.type == "text")


def _image_part(source: Mapping[str, Any]) -> dict[str, Any]:
    image: dict[str, Any] = {"url": image_url(source)}
    if isinstance(source.get("detail"), str):
        image["detail"] = source["detail"]
    return {"type": "image_url", "image_url": image}


def image_url(source: Mapping[str, Any]) -> str:
    """The URL of an image, with the image in it if it has none of its own."""
    if isinstance(url := source.get("url"), str):
        return url
    return f"data:{source.get('media_type') or 'image/png'};base64,{source.get('data', '')}"
