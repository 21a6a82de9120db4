"""The body of a request to the Responses API.

Nothing is stored at the service: the whole conversation is sent each time, including the reasoning
of earlier responses, which the service has encrypted. Items have no ids where the API allows it, so
that it looks nothing up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from amplifier_core.message_models import ChatRequest, Degradation, Message, ReasoningBlock
from amplifier_modules._shared.history import portable_id
from amplifier_modules._shared.providers.chat_messages import (
    image_url,
    wire_call_id,
    wire_response_format,
    wire_tool_choice,
    wire_tools,
)

ENCRYPTED_REASONING = "reasoning.encrypted_content"

Item = dict[str, Any]


def wire_input(messages: Sequence[Message]) -> list[Item]:
    """The conversation as the API's `input`.

    Args:
        messages: Normalised: each call's result directly follows its message.
    """
    items: list[Item] = []
    for message in messages:
        if message.role in ("tool", "function"):
            items.append(_call_output(message))
        elif message.role == "assistant":
            items += _assistant_items(message)
        else:
            items.append({"role": message.role, "content": _input_content(message)})
    return items


def wire_options(request: ChatRequest) -> Item:
    """The options of a request that the API accepts, under its names, without the conversation."""
    body: Item = {}
    if request.tools:
        body["tools"] = [_tool(tool["function"]) for tool in wire_tools(request.tools)]
        if request.tool_choice is not None:
            choice, parallel = wire_tool_choice(request.tool_choice)
            body["tool_choice"] = _choice(choice)
            if not parallel:
                body["parallel_tool_calls"] = False
    wanted = wire_response_format(request)
    if wanted is not None:
        # The Chat Completions API nests the schema's description one level deeper.
        inner = wanted.pop("json_schema", {})
        body["text"] = {"format": {**wanted, **inner}}
    return body


def departures(request: ChatRequest, name: str) -> list[Degradation]:
    """What was requested but is not supported by this API."""
    if not request.stop:
        return []
    return [
        Degradation(
            requested="stop sequences",
            actual="none",
            reason=f"the Responses API of {name} takes none",
        )
    ]


def _tool(function: Mapping[str, Any]) -> Item:
    # Without it the API enforces the schema strictly, and refuses schemas that cannot be enforced.
    return {"type": "function", "strict": False, **function}


def _choice(choice: str | dict[str, Any]) -> str | Item:
    if isinstance(choice, str):
        return choice
    function = choice.get("function")
    if isinstance(function, Mapping):
        return {"type": "function", "name": cast("Mapping[str, Any]", function)["name"]}
    return choice


def _assistant_items(message: Message) -> list[Item]:
    if isinstance(message.content, str):
        return [{"role": "assistant", "content": message.content}]
    items: list[Item] = []
    for block in message.content:
        if block.type == "text":
            item: Item = {"role": "assistant", "content": block.text}
            if isinstance(phase := block.get("phase"), str):
                item["phase"] = phase
            items.append(item)
        elif block.type == "tool_call":
            items.append(
                {
                    "type": "function_call",
                    "call_id": wire_call_id(block.id),
                    "name": portable_id(block.name),
                    "arguments": json.dumps(block.input, ensure_ascii=False, separators=(",", ":")),
                }
            )
        elif isinstance(block, ReasoningBlock) and (reasoning := _reasoning(block)):
            items.append(reasoning)
    # Reasoning is refused without the item that follows it.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _reasoning(block: ReasoningBlock) -> Item | None:
    """The reasoning item as received; None if the service could not use it."""
    encrypted = block.get("encrypted_content")
    if not (encrypted or block.content):
        return None
    item: Item = {"type": "reasoning", "summary": block.summary}
    if isinstance(own_id := block.get("id"), str):
        item["id"] = own_id
    if block.content:
        item["content"] = block.content
    if encrypted:
        item["encrypted_content"] = encrypted
    return item


def _call_output(message: Message) -> Item:
    content = _input_content(message)
    return {
        "type": "function_call_output",
        "call_id": wire_call_id(message.tool_call_id or ""),
        "output": content,
    }


def _input_content(message: Message) -> str | list[Item]:
    if isinstance(message.content, str):
        return message.content
    parts: list[Item] = []
    for block in message.content:
        if block.type == "text":
            parts.append({"type": "input_text", "text": block.text})
        elif block.type == "image":
            parts.append(_image(block.source))
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _image(source: Mapping[str, Any]) -> Item:
    detail = source.get("detail")
    return {
        "type": "input_image",
        "image_url": image_url(source),
        "detail": detail if isinstance(detail, str) else "auto",
    }
