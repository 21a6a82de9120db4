"""The rules of OpenAI's Responses API that a client can break, with the messages it answers."""

import re
from collections.abc import Container
from typing import Any

from tests.support.llm.rules import Rejected, wrong_type
from tests.support.llm.schema_rules import check_openai_format

_REQUEST_KEYS = frozenset(
    [
        "background",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ]
)
_ITEM_KEYS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "tool_search_call": {"type", "id", "call_id", "arguments", "execution", "status"},
    "tool_search_output": {"type", "id", "call_id", "tools", "execution", "status"},
}
_ROLES = ("assistant", "system", "developer", "user")
_INCLUDABLE = ("reasoning.encrypted_content", "message.output_text.logprobs")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_ID = 64


def check_request(body: Any, issued: Container[tuple[str, str]] = ()) -> None:
    """Raises `Rejected` for a body the API would not take.

    Args:
        body: The decoded body.
        issued: Ids and encrypted contents of reasoning the server has sent, besides its usual ones.
    """
    if not isinstance(body, dict):
        raise Rejected("We could not parse the JSON body of your request.")
    for key in body:
        if key not in _REQUEST_KEYS:
            raise Rejected(f"Unknown parameter: '{key}'.", param=key, code="unknown_parameter")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise _missing("model")
    _check_options(body)
    for at, tool in enumerate(body.get("tools") or ()):
        _check_tool(tool, f"tools[{at}]")
    given = body.get("input")
    if isinstance(given, str):
        return
    if not isinstance(given, list):
        raise wrong_type("input", "one of an array of objects or string", given)
    if not given:
        raise Rejected("Invalid 'input': empty array.", param="input", code="empty_array")
    _check_items(given, stored=body.get("store") is not False, issued=issued)


def _missing(param: str) -> Rejected:
    return Rejected(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def _check_options(body: dict[str, Any]) -> None:
    limit = body.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 16):
        raise Rejected(
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, "
            f"but got {limit} instead.",
            param="max_output_tokens",
            code="integer_below_min_value",
        )
    for wanted in body.get("include") or ():
        if wanted not in _INCLUDABLE:
            raise Rejected(f"Invalid value: '{wanted}'.", param="include[0]", code="invalid_value")
    reasoning = body.get("reasoning") or {}
    for key in reasoning:
        if key not in ("effort", "summary"):
            raise Rejected(f"Unknown parameter: 'reasoning.{key}'.", param=f"reasoning.{key}")
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        names = [tool.get("name") for tool in body.get("tools") or ()]
        if choice.get("name") not in names:
            raise Rejected("Tool choice 'function' not found in 'tools' parameter.")
        if set(choice) != {"type", "name"}:
            raise Rejected("Unknown parameter: 'tool_choice.function'.", param="tool_choice")
    text_format = (body.get("text") or {}).get("format")
    if isinstance(text_format, dict) and text_format.get("type") == "json_schema":
        check_openai_format(text_format, "text.format")


def _check_tool(tool: Any, where: str, *, is_found: bool = False) -> None:
    if isinstance(tool, dict) and tool.get("type") == "tool_search":
        if set(tool) - {"type", "execution", "description", "parameters"}:
            raise Rejected(f"Unknown parameter in '{where}'.", param=where)
        return
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise _missing(f"{where}.type")
    if not isinstance(tool.get("name"), str):
        raise _missing(f"{where}.name")
    if not _NAME.fullmatch(tool["name"]) or len(tool["name"]) > 64:
        raise Rejected(f"Invalid '{where}.name'.", param=f"{where}.name", code="invalid_value")
    for key in tool:
        known = ("type", "name", "description", "parameters", "strict")
        if key not in known and not (is_found and key == "defer_loading"):
            raise Rejected(f"Unknown parameter: '{where}.{key}'.", param=f"{where}.{key}")
    schema = tool.get("parameters") or {}
    if schema.get("type") != "object":
        raise Rejected(f"Invalid schema for function '{tool['name']}'.", param=where)
    if tool.get("strict", True) is not False and schema.get("additionalProperties") is not False:
        raise Rejected(
            f"Invalid schema for function '{tool['name']}': In context=(), "
            "'additionalProperties' is required to be supplied and to be false.",
            param=f"{where}.parameters",
            code="invalid_function_parameters",
        )


def _check_items(items: list[Any], *, stored: bool, issued: Container[tuple[str, str]]) -> None:
    waiting: list[str] = []
    reasoning: str | None = None
    for at, item in enumerate(items):
        where = f"input[{at}]"
        if not isinstance(item, dict):
            raise wrong_type(where, "an object", item)
        kind = item.get("type", "message")
        if kind not in _ITEM_KEYS:
            raise Rejected(f"Invalid value: '{kind}'.", param=f"{where}.type", code="invalid_value")
        for key in item:
            if key not in _ITEM_KEYS[kind]:
                param = f"{where}.{key}"
                raise Rejected(f"Unknown parameter: '{param}'.", param=param)
        if reasoning is not None and kind != "reasoning" and not _is_of_model(item, kind):
            raise _lonely(reasoning)
        if kind == "message":
            _check_message(item, where)
            reasoning = None
        elif kind == "reasoning":
            reasoning = _check_reasoning(item, where, stored=stored, issued=issued)
        elif kind == "function_call":
            waiting.append(_check_call(item, where, waiting))
            reasoning = None
        elif kind == "tool_search_call":
            waiting.append(_check_search(item, where))
            reasoning = None
        else:
            _check_output(item, where, waiting)
    if reasoning is not None:
        raise _lonely(reasoning)
    if waiting:
        raise Rejected(f"No tool output found for function call {waiting[0]}.", param="input")


def _is_of_model(item: dict[str, Any], kind: str) -> bool:
    return kind in ("function_call", "tool_search_call") or item.get("role") == "assistant"


def _lonely(reasoning: str) -> Rejected:
    return Rejected(
        f"Item '{reasoning}' of type 'reasoning' was provided without its required following item.",
        param="input",
    )


def _check_message(item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise Rejected(f"Invalid value: '{role}'.", param=f"{where}.role", code="invalid_value")
    _check_content(item.get("content"), f"{where}.content", of_model=role == "assistant")


def _check_content(content: Any, where: str, *, of_model: bool) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong_type(where, "one of an array of objects or string", content)
    allowed = ("output_text", "refusal") if of_model else ("input_text", "input_image")
    for at, part in enumerate(content):
        kind = part.get("type")
        if kind not in allowed:
            names = " and ".join(map(repr, allowed))
            raise Rejected(
                f"Invalid value: '{kind}'. Supported values are: {names}.",
                param=f"{where}[{at}]",
                code="invalid_value",
            )
        if kind == "input_image" and not isinstance(part.get("image_url"), str):
            raise _missing(f"{where}[{at}].image_url")


def _check_reasoning(
    item: dict[str, Any], where: str, *, stored: bool, issued: Container[tuple[str, str]]
) -> str:
    for key in ("id", "summary"):
        if key not in item:
            raise _missing(f"{where}.{key}")
    encrypted = item.get("encrypted_content")
    if encrypted is None and not stored:
        raise Rejected(
            f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set "
            "to false. Try again with `store` set to true, or remove this item from your input.",
            status=404,
            param="input",
        )
    parts = [("summary", "summary_text"), ("content", "reasoning_text")]
    for key, kind in parts:
        for part in item.get(key) or ():
            if not isinstance(part, dict) or part.get("type") != kind:
                raise Rejected(f"Invalid value for '{where}.{key}'.", param=f"{where}.{key}")
            if not isinstance(part.get("text"), str):
                raise _missing(f"{where}.{key}.text")
    known = encrypted == encrypted_for(item["id"]) or (item["id"], str(encrypted)) in issued
    if encrypted is not None and not known:
        raise Rejected(
            f"The encrypted content for item {item['id']} could not be verified.",
            param=where,
            code="invalid_encrypted_content",
        )
    return item["id"]


def encrypted_for(item_id: str) -> str:
    """The encrypted content of the server's reasoning item of this id."""
    return f"gAAAAA-{item_id}-encrypted"


def _check_call(item: dict[str, Any], where: str, waiting: list[str]) -> str:
    for key in ("call_id", "name", "arguments"):
        if not isinstance(item.get(key), str) or (not item[key] and key != "arguments"):
            raise _missing(f"{where}.{key}")
    if len(item["call_id"]) > _MAX_ID:
        raise Rejected(f"Invalid '{where}.call_id': string too long.", param=f"{where}.call_id")
    if item["call_id"] in waiting:
        raise Rejected(f"Duplicate call_id '{item['call_id']}'.", param=f"{where}.call_id")
    return item["call_id"]


def _check_search(item: dict[str, Any], where: str) -> str:
    if item.get("execution") != "client" or not isinstance(item.get("arguments"), dict):
        raise _missing(f"{where}.arguments")
    if not isinstance(item.get("call_id"), str):
        raise _missing(f"{where}.call_id")
    return item["call_id"]


def _check_output(item: dict[str, Any], where: str, waiting: list[str]) -> None:
    call_id = item.get("call_id")
    if call_id not in waiting:
        raise Rejected(
            f"No tool call found for function call output with call_id {call_id}.", param="input"
        )
    if item["type"] == "tool_search_output":
        if item.get("execution") != "client" or not isinstance(item.get("tools"), list):
            raise _missing(f"{where}.tools")
        for at, tool in enumerate(item["tools"]):
            _check_tool(tool, f"{where}.tools[{at}]", is_found=True)
        waiting.remove(call_id)
        return
    if "output" not in item:
        raise _missing(f"{where}.output")
    _check_content(item["output"], f"{where}.output", of_model=False)
    waiting.remove(call_id)
