"""Span attributes, following OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from amplifier_support.fields import read_field, to_mapping

PROVIDERS = {
    "azure-openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The conventions' provider names, where they differ from ours."""

USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read.input_tokens",
    "cache_write_tokens": "cache_write.input_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
}
"""Our count of tokens → its name in the conventions: on a span after `gen_ai.usage.`, as a counter after
`gen_ai.client.inference.usage.`."""

FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Attribute of a model call: seconds until the first piece of its answer."""

Attributes = dict[str, Any]
Showable = Callable[[Any], Any]
"""Converts a value to plain data, without secrets and with long texts cut."""


def provider_attributes(data: Mapping[str, Any]) -> Attributes:
    """The provider and model of a call."""
    name = data.get("provider")
    named = {"gen_ai.provider.name": PROVIDERS.get(name, name) if isinstance(name, str) else None}
    named["gen_ai.request.model"] = data.get("model")
    return {"gen_ai.operation.name": "chat", **_texts(named)}


def response_attributes(data: Mapping[str, Any]) -> Attributes:
    """The response, except its content."""
    attributes = usage_attributes(data.get("usage"))
    reason = data.get("finish_reason")
    if isinstance(reason, str) and reason:
        attributes["gen_ai.response.finish_reasons"] = (reason,)
    identity = read_field(read_field(data.get("response"), "metadata"), "id")
    named = {"gen_ai.response.model": data.get("model"), "gen_ai.response.id": identity}
    return attributes | _texts(named)


def usage_attributes(usage: Any) -> Attributes:
    """Tokens and cost; unknown values are left out."""
    attributes: Attributes = {}
    for name, part in USAGE.items():
        count = read_field(usage, name)
        if isinstance(count, int) and not isinstance(count, bool):
            attributes[f"gen_ai.usage.{part}"] = count
    cost = read_field(usage, "cost_usd")
    if cost is not None:
        try:
            attributes["amplifier.cost_usd"] = float(cost)
        except (TypeError, ValueError):
            pass  # The cost is not a number.
    return attributes


def tool_attributes(data: Mapping[str, Any]) -> Attributes:
    """The tool of a call."""
    named = {
        "gen_ai.tool.name": data.get("tool_name"),
        "gen_ai.tool.call.id": data.get("tool_call_id"),
    }
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
    return {**about, **_texts(named)}


def _texts(named: Mapping[str, Any]) -> Attributes:
    """The attributes that are text, and not empty."""
    return {name: value for name, value in named.items() if isinstance(value, str) and value}


def input_messages(messages: Any, showable: Showable, max_characters: int) -> Attributes:
    """The messages of a request; the earliest are left out if longer than `max_characters`."""
    if not isinstance(messages, (list, tuple)):
        return {}
    kept: list[str] = []
    size = 2
    # From the end, so that a long conversation costs no more than the part kept.
    for message in reversed(cast("list[Any]", messages)):
        text = json.dumps(_message(showable(message)))
        size += len(text) + 2
        if size > max_characters and kept:
            break
        kept.append(text)
    left_out = len(cast("list[Any]", messages)) - len(kept)
    attributes: Attributes = {"gen_ai.input.messages": f"[{', '.join(kept[::-1])}]"}
    return (
        {**attributes, "amplifier.content.messages_left_out": left_out} if left_out else attributes
    )


def output_messages(response: Any, showable: Showable) -> Attributes:
    """The answer."""
    content = read_field(response, "content")
    if content is None:
        return {}
    content_of = {
        "role": "assistant",
        "content": content,
        "tool_calls": read_field(response, "tool_calls"),
    }
    message = _message(showable(content_of))
    reason = read_field(response, "finish_reason")
    if isinstance(reason, str):
        message["finish_reason"] = reason
    return {"gen_ai.output.messages": json.dumps([message])}


def as_attribute(value: Any, showable: Showable) -> str:
    """A value as text."""
    plain = showable(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _message(message: Any) -> dict[str, Any]:
    """A stored message in the form of the conventions."""
    if not isinstance(message, Mapping):
        return {"role": "user", "parts": [{"type": "text", "content": str(message)}]}
    fields = cast("Mapping[str, Any]", message)
    role = fields.get("role", "user")
    content = fields.get("content")
    if role in ("tool", "function"):
        result = {
            "type": "tool_call_response",
            "id": fields.get("tool_call_id"),
            "response": content,
        }
        return {"role": "tool", "parts": [result]}
    blocks = cast("Iterable[Any]", content) if isinstance(content, list) else [content]
    parts = [part for block in blocks if (part := _part(block)) is not None]
    seen = {part.get("id") for part in parts if part["type"] == "tool_call"}
    calls = [_call(call) for call in fields.get("tool_calls") or () if isinstance(call, Mapping)]
    return {"role": role, "parts": [*parts, *(call for call in calls if call["id"] not in seen)]}


def _part(block: Any) -> dict[str, Any] | None:
    if isinstance(block, str):
        return {"type": "text", "content": block} if block else None
    if not isinstance(block, Mapping):
        return None
    fields = cast("Mapping[str, Any]", block)
    kind = str(fields.get("type"))
    if kind == "text":
        return {"type": "text", "content": fields.get("text")}
    if kind in ("thinking", "reasoning"):
        return {"type": "reasoning", "content": fields.get("thinking") or fields.get("content")}
    if kind in ("tool_call", "tool_use"):
        return _call(fields)
    if kind == "tool_result":
        identity = fields.get("tool_call_id") or fields.get("tool_use_id")
        response = fields.get("output", fields.get("content"))
        return {"type": "tool_call_response", "id": identity, "response": response}
    # What it is, without its bytes.
    return {"type": kind}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    named = to_mapping(call.get("function")) or call
    arguments = next(
        (named[key] for key in ("arguments", "input") if named.get(key) is not None), None
    )
    name = named.get("name") or named.get("tool")
    return {"type": "tool_call", "id": call.get("id"), "name": name, "arguments": arguments}
