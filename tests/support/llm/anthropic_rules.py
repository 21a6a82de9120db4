"""The rules of Anthropic's Messages API that a client can break, with the messages it answers."""

import base64
import re
from collections.abc import Iterator
from typing import Any, cast

from tests.support.llm.anthropic_thinking import REDACTED_DATA, Issued, check_thinking, sign
from tests.support.llm.rules import Rejected, find_kind
from tests.support.llm.schema_rules import check_anthropic_format

__all__ = ["REDACTED_DATA", "Issued", "check_request", "sign"]

_REQUEST_KEYS = frozenset(
    [
        "cache_control",
        "container",
        "context_management",
        "inference_geo",
        "max_tokens",
        "mcp_servers",
        "messages",
        "metadata",
        "model",
        "output_config",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    ]
)
_BLOCK_KEYS: dict[str, frozenset[str]] = {
    kind: frozenset(keys.split())
    for kind, keys in {
        "text": "type text cache_control citations",
        "image": "type source cache_control",
        "document": "type source cache_control citations context title",
        "thinking": "type thinking signature",
        "redacted_thinking": "type data",
        "tool_use": "type id name input cache_control",
        "tool_result": "type tool_use_id content is_error cache_control",
        "tool_reference": "type tool_name cache_control",
    }.items()
}
_REQUIRED = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "tool_reference": ("tool_name",),
}
_ROLES_OF = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
}
_TOOL_KEYS = frozenset(
    [
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "description",
        "eager_input_streaming",
        "input_examples",
        "input_schema",
        "name",
        "strict",
        "type",
    ]
)
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_MAX_BREAKPOINTS = 4


def check_request(body: Any, issued: Issued, *, counting: bool = False) -> None:
    """Raises `Rejected` for a body the Messages API would not take."""
    if not isinstance(body, dict):
        raise Rejected("The request body is not valid JSON: expected an object")
    _extra(body, _REQUEST_KEYS, "")
    needed = ("model", "messages") if counting else ("model", "messages", "max_tokens")
    for key in needed:
        if body.get(key) is None:
            raise Rejected(f"{key}: Field required")
    if not isinstance(body["model"], str) or not body["model"]:
        raise Rejected("model: String should have at least 1 character")
    _check_numbers(body)
    _check_system(body.get("system"))
    tools = _check_tools(body.get("tools"), body.get("tool_choice"))
    _check_messages(body["messages"], has_tools=bool(tools))
    _check_deferred(body.get("tools") or [], body["messages"])
    check_thinking(body, issued)
    if "format" in (body.get("output_config") or {}):
        check_anthropic_format(body["output_config"]["format"])
    if (found := _breakpoints(body)) > _MAX_BREAKPOINTS:
        raise Rejected(
            f"A maximum of {_MAX_BREAKPOINTS} blocks with cache_control may be provided. "
            f"Found {found}."
        )


def _extra(value: dict[str, Any], allowed: frozenset[str], where: str) -> None:
    for key in value:
        if key not in allowed:
            raise Rejected(f"{where}{key}: Extra inputs are not permitted")


def _check_numbers(body: dict[str, Any]) -> None:
    limit = body.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise Rejected("max_tokens: Input should be greater than or equal to 1")
    for key in ("temperature", "top_p"):
        value = body.get(key)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise Rejected(f"{key}: Input should be between 0 and 1")
    if not isinstance(body.get("stream", False), bool):
        raise Rejected("stream: Input should be a valid boolean")
    stops = body.get("stop_sequences") or []
    for at, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop.strip():
            raise Rejected(f"stop_sequences.{at}: each stop sequence must contain non-whitespace")


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        raise Rejected("system: Input should be a valid list")
    for at, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise Rejected(f"system.{at}.type: Input should be 'text'")
        _check_block(block, f"system.{at}")


def _check_tools(tools: Any, choice: Any) -> list[str]:
    if tools is not None and not isinstance(tools, list):
        raise Rejected("tools: Input should be a valid list")
    names: list[str] = []
    for at, tool in enumerate(tools or []):
        where = f"tools.{at}"
        if not isinstance(tool, dict):
            raise Rejected(f"{where}: Input should be a valid dictionary")
        if tool.get("type") not in (None, "custom"):
            names.append(str(tool.get("name")))
            continue
        where += ".custom"
        _extra(tool, _TOOL_KEYS, f"{where}.")
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise Rejected(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if not isinstance(tool.get("description", ""), str):
            raise Rejected(f"{where}.description: Input should be a valid string")
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise Rejected(f"{where}.input_schema: Field required")
        if schema.get("type") != "object":
            raise Rejected(f"{where}.input_schema.type: Input should be 'object'")
        names.append(name)
    if len(set(names)) != len(names):
        raise Rejected("tools: Tool names must be unique.")
    _check_choice(choice, names)
    return names


def _check_deferred(tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    deferred = {tool["name"] for tool in tools if tool.get("defer_loading")}
    if tools and len(deferred) == len(tools):
        raise Rejected("All tools have defer_loading set. At least one tool must be non-deferred.")
    for tool in tools:
        if tool["name"] in deferred and "cache_control" in tool:
            raise Rejected(
                f"Tool '{tool['name']}' cannot have both defer_loading and cache_control"
            )
    for name in _references(messages):
        if name not in deferred:
            raise Rejected(f"Tool reference '{name}' not found in available tools")


def _references(value: Any) -> Iterator[str]:
    for block in value if isinstance(value, list) else ():
        if block.get("type") == "tool_reference":
            yield block["tool_name"]
        yield from _references(block.get("content"))


def _check_choice(choice: Any, names: list[str]) -> None:
    if choice is None:
        return
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise Rejected("tool_choice: Input should be an object with type auto, any, tool or none")
    if not names:
        raise Rejected("tool_choice may only be specified while providing tools.")
    if choice["type"] == "tool" and choice.get("name") not in names:
        raise Rejected(f"Tool '{choice.get('name')}' not found in provided tools")


def _check_messages(messages: Any, *, has_tools: bool) -> None:
    if not isinstance(messages, list):
        raise Rejected("messages: Input should be a valid list")
    if not messages:
        raise Rejected("messages: at least one message is required")
    for at, message in enumerate(messages):
        _check_message(message, at)
    if messages[0]["role"] != "user":
        raise Rejected('messages: first message must use the "user" role')
    if messages[-1]["role"] == "assistant":
        raise Rejected(
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
    merged = _merge(messages)
    _check_pairs(merged)
    uses_tools = any(
        b["type"] in ("tool_use", "tool_result") for _, _, blocks in merged for b in blocks
    )
    if uses_tools and not has_tools:
        raise Rejected(
            "Requests which have `tool_use` or `tool_result` blocks in `messages` must define tools."
        )


def _check_message(message: Any, at: int) -> None:
    if not isinstance(message, dict):
        raise Rejected(f"messages.{at}: Input should be a valid dictionary")
    _extra(message, frozenset({"role", "content"}), f"messages.{at}.")
    role = message.get("role")
    if role not in _ROLES_OF:
        if role == "system":
            raise Rejected(
                'messages: Unexpected role "system". The Messages API accepts a top-level '
                '`system` parameter, not "system" as an input message role.'
            )
        raise Rejected(
            f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant".'
        )
    content = message.get("content")
    if not isinstance(content, str | list):
        raise Rejected(f"messages.{at}.content: Input should be a valid list")
    if not content:
        raise Rejected(f"messages.{at}: {role} messages must have non-empty content")
    if isinstance(content, str):
        _check_text(content)
        return
    for index, block in enumerate(content):
        where = f"messages.{at}.content.{index}"
        _check_block(block, where)
        if block["type"] not in _ROLES_OF[role]:
            raise Rejected(f"{where}: `{block['type']}` blocks can only be in other messages")


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise Rejected("messages: text: Input should be a valid string")
    if not text:
        raise Rejected("messages: text content blocks must be non-empty")
    if not text.strip():
        raise Rejected("messages: text content blocks must contain non-whitespace text")


def _check_block(block: Any, where: str) -> None:
    if not isinstance(block, dict):
        raise Rejected(f"{where}: Input should be a valid dictionary")
    kind = block.get("type")
    if kind not in _BLOCK_KEYS:
        raise Rejected(
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected "
            f"tags: {', '.join(map(repr, _BLOCK_KEYS))}"
        )
    _extra(block, _BLOCK_KEYS[kind], f"{where}.{kind}.")
    for key in _REQUIRED[kind]:
        if key not in block:
            raise Rejected(f"{where}.{kind}.{key}: Field required")
    if kind == "text":
        _check_text(block["text"])
    elif kind == "tool_use":
        _check_tool_use(block, where)
    elif kind == "tool_result":
        _check_tool_result(block, where)
    elif kind == "image":
        _check_image(block["source"], f"{where}.image.source")


def _check_tool_use(block: dict[str, Any], where: str) -> None:
    if not isinstance(block["id"], str) or not _TOOL_ID.fullmatch(block["id"]):
        raise Rejected(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block["name"], str) or not _TOOL_NAME.fullmatch(block["name"]):
        raise Rejected(
            f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        )
    if not isinstance(block["input"], dict):
        raise Rejected(f"{where}.tool_use.input: Input should be a valid dictionary")


def _check_tool_result(block: dict[str, Any], where: str) -> None:
    content = block.get("content")
    if not isinstance(block.get("is_error", False), bool):
        raise Rejected(f"{where}.tool_result.is_error: Input should be a valid boolean")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Rejected(f"{where}.tool_result.content: Input should be a valid list")
    for at, part in enumerate(content):
        inner = f"{where}.tool_result.content.{at}"
        if isinstance(part, dict) and part.get("type") not in (
            *("text", "image", "document", "tool_reference"),
        ):
            raise Rejected(f"{inner}: Input tag '{part.get('type')}' is not allowed here")
        _check_block(part, inner)
        if block.get("is_error") and part["type"] != "text":
            raise Rejected(f'{inner}: all content must be type "text" if `is_error` is true')


def _check_image(source: Any, where: str) -> None:
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url", "file"):
        raise Rejected(f"{where}: Input tag should be one of 'base64', 'url', 'file'")
    if source["type"] != "base64":
        return
    _extra(source, frozenset({"type", "media_type", "data"}), f"{where}.base64.")
    if source.get("media_type") not in _IMAGE_TYPES:
        raise Rejected(f"{where}.base64.media_type: Input should be one of {sorted(_IMAGE_TYPES)}")
    try:
        base64.b64decode(cast("Any", source.get("data")), validate=True)
    except (TypeError, ValueError) as error:
        raise Rejected(f"{where}.base64.data: invalid base64 data") from error


Merged = list[tuple[int, str, list[dict[str, Any]]]]


def _merge(messages: list[dict[str, Any]]) -> Merged:
    """(index of the first, role, blocks) with neighbours of one role joined, as the API does."""
    merged: Merged = []
    for at, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if merged and merged[-1][1] == message["role"]:
            merged[-1][2].extend(blocks)
        else:
            merged.append((at, message["role"], list(blocks)))
    return merged


def _check_pairs(merged: Merged) -> None:
    seen: set[str] = set()
    open_calls: list[str] = []
    for at, role, blocks in merged:
        if role == "assistant":
            open_calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
            if len(set(open_calls)) != len(open_calls) or seen.intersection(open_calls):
                raise Rejected(f"messages.{at}: `tool_use` ids must be unique")
            seen.update(open_calls)
            continue
        _check_results(at, blocks, open_calls)
        open_calls = []


def _check_results(at: int, blocks: list[dict[str, Any]], calls: list[str]) -> None:
    results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
    for index, result in enumerate(results):
        if result not in calls:
            raise Rejected(
                f"messages.{at}.content.{index}: unexpected `tool_use_id` found in `tool_result` "
                f"blocks: {result}. Each `tool_result` block must have a corresponding `tool_use` "
                "block in the previous message."
            )
        if result in results[:index]:
            raise Rejected(
                f"messages.{at}.content.{index}: each tool_use must have a single result. Found "
                f"multiple `tool_result` blocks with id: {result}"
            )
    first = [b["tool_use_id"] for b in blocks[: len(results)] if b["type"] == "tool_result"]
    missing = [call for call in calls if call not in first]
    if missing:
        raise Rejected(
            f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks "
            f"immediately after: {', '.join(missing)}. Each `tool_use` block must have a "
            "corresponding `tool_result` block in the next message."
        )


def _breakpoints(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_breakpoints, value))
    if not isinstance(value, dict):
        return 0
    own = _breakpoint(value["cache_control"]) if value.get("cache_control") is not None else 0
    return own + sum(
        _breakpoints(v) for k, v in value.items() if k in ("system", "tools", "messages", "content")
    )


def _breakpoint(control: Any) -> int:
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        raise Rejected(f"cache_control.type: Input should be 'ephemeral', not {find_kind(control)}")
    if control.get("ttl", "5m") not in ("5m", "1h"):
        raise Rejected("cache_control.ttl: Input should be '5m' or '1h'")
    return 1
