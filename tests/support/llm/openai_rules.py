"""The rules of OpenAI's Chat Completions that a client can break, with the messages it answers."""

import re
from typing import Any

from tests.support.llm.rules import Rejected, wrong_type
from tests.support.llm.schema_rules import check_openai_format

_REQUEST_KEYS = frozenset(
    [
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    ]
)
_MESSAGE_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    # What OpenAI-compatible servers send as reasoning is taken back by them.
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio", "reasoning_content"},
    "tool": {"role", "content", "tool_call_id", "name"},
}
_PARTS = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
}
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_ID = 40
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def check_request(body: Any) -> None:
    """Raises `Rejected` for a body the API would not take."""
    if not isinstance(body, dict):
        raise Rejected("We could not parse the JSON body of your request.")
    for key in body:
        if key not in _REQUEST_KEYS:
            raise Rejected(f"Unknown parameter: '{key}'.", param=key, code="unknown_parameter")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise Rejected("you must provide a model parameter")
    _check_options(body)
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        check_openai_format(wanted.get("json_schema") or {}, "response_format.json_schema")
    _check_tools(body.get("tools"), body.get("tool_choice"))
    _check_messages(body.get("messages"))


def _check_options(body: dict[str, Any]) -> None:
    if body.get("stream_options") is not None and not body.get("stream"):
        raise Rejected(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        raise Rejected(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        )
    for key in ("max_tokens", "max_completion_tokens"):
        value = body.get(key)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise Rejected(
                f"Invalid '{key}': integer below minimum value. Expected a value >= 1, but got "
                f"{value} instead.",
                param=key,
                code="integer_below_min_value",
            )
    for key, top in (("temperature", 2), ("top_p", 1)):
        value = body.get(key)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= top):
            raise Rejected(f"Invalid '{key}': expected a value between 0 and {top}.", param=key)
    if body.get("reasoning_effort") not in (None, *_EFFORTS):
        raise Rejected(
            f"Invalid value: '{body['reasoning_effort']}'. Supported values are: "
            f"{', '.join(map(repr, _EFFORTS))}.",
            param="reasoning_effort",
            code="invalid_value",
        )
    stop = body.get("stop")
    if isinstance(stop, list) and len(stop) > 4:
        raise Rejected("Invalid 'stop': array too long. Expected at most 4.", param="stop")


def _check_tools(tools: Any, choice: Any) -> None:
    if choice is not None and tools is None:
        raise Rejected(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified.",
            param="tool_choice",
        )
    if tools is None:
        return
    if not isinstance(tools, list):
        raise wrong_type("tools", "an array of objects", tools)
    if not tools:
        raise Rejected(
            "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an "
            "empty array instead.",
            param="tools",
            code="empty_array",
        )
    for at, tool in enumerate(tools):
        _check_tool(tool, f"tools[{at}]")


def _check_tool(tool: Any, where: str) -> None:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise Rejected(f"Missing required parameter: '{where}.type'.", param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise Rejected(f"Missing required parameter: '{where}.function'.", param=where)
    _check_name(function.get("name"), f"{where}.function.name")
    if len(function["name"]) > 64:
        raise Rejected(
            f"Invalid '{where}.function.name': string too long. Expected a string with maximum "
            f"length 64, but got a string with length {len(function['name'])} instead.",
            param=f"{where}.function.name",
            code="string_above_max_length",
        )
    schema = function.get("parameters")
    if schema is not None and (not isinstance(schema, dict) or schema.get("type") != "object"):
        found = schema.get("type") if isinstance(schema, dict) else None
        raise Rejected(
            f"Invalid schema for function '{function['name']}': schema must be a JSON Schema of "
            f"'type: \"object\"', got 'type: \"{found}\"'.",
            param=f"{where}.function.parameters",
            code="invalid_function_parameters",
        )


def _check_name(name: Any, param: str) -> None:
    if not isinstance(name, str):
        raise wrong_type(param, "a string", name)
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"Invalid '{param}': string does not match pattern. Expected a string that matches "
            "the pattern '^[a-zA-Z0-9_-]+$'.",
            param=param,
            code="invalid_value",
        )


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array of objects", messages)
    if not messages:
        raise Rejected(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an "
            "empty array instead.",
            param="messages",
            code="empty_array",
        )
    waiting: list[str] = []
    caller = -1
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if not isinstance(message, dict):
            raise wrong_type(where, "an object", message)
        role = message.get("role")
        if role not in _MESSAGE_KEYS:
            raise Rejected(
                f"Invalid value: '{role}'. Supported values are: "
                f"{', '.join(map(repr, _MESSAGE_KEYS))}.",
                param=f"{where}.role",
                code="invalid_value",
            )
        if role == "tool":
            _check_answer(message, where, waiting)
        elif waiting:
            raise _unanswered(caller, waiting)
        _check_message(message, role, where)
        if message.get("tool_calls"):
            waiting, caller = _check_calls(message["tool_calls"], where), at
    if waiting:
        raise _unanswered(caller, waiting)


def _unanswered(caller: int, waiting: list[str]) -> Rejected:
    return Rejected(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{', '.join(waiting)}",
        param=f"messages.[{caller + 1}].role",
    )


def _check_answer(message: dict[str, Any], where: str, waiting: list[str]) -> None:
    answered = message.get("tool_call_id")
    if not isinstance(answered, str):
        raise Rejected(
            f"Missing required parameter: '{where}.tool_call_id'.",
            param=f"{where}.tool_call_id",
            code="missing_required_parameter",
        )
    if answered not in waiting:
        raise Rejected(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
            "message with 'tool_calls'.",
            param=f"{where}.role",
        )
    waiting.remove(answered)


def _check_message(message: dict[str, Any], role: str, where: str) -> None:
    for key in message:
        if key not in _MESSAGE_KEYS[role]:
            param = f"{where}.{key}"
            raise Rejected(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    content = message.get("content")
    if content is None:
        if role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
            return
        raise Rejected(
            f"Invalid value for 'content': expected a string, got null. ({where}.content)",
            param=f"{where}.content",
        )
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong_type(f"{where}.content", "one of a string or array of objects", content)
    if not content:
        raise Rejected(f"Invalid '{where}.content': empty array.", param=f"{where}.content")
    for at, part in enumerate(content):
        _check_part(part, role, f"{where}.content[{at}]")


def _check_part(part: Any, role: str, where: str) -> None:
    if not isinstance(part, dict):
        raise wrong_type(where, "an object", part)
    kind = part.get("type")
    if kind not in _PARTS[role]:
        raise Rejected(
            f"Invalid value: '{kind}'. Supported values are: "
            f"{', '.join(map(repr, sorted(_PARTS[role])))}.",
            param=f"{where}.type",
            code="invalid_value",
        )
    if kind == "text" and not isinstance(part.get("text"), str):
        raise wrong_type(f"{where}.text", "a string", part.get("text"))
    if kind == "image_url" and not isinstance((part.get("image_url") or {}).get("url"), str):
        raise Rejected(f"Missing required parameter: '{where}.image_url.url'.", param=where)
    for key in part:
        if key not in ("type", kind):
            raise Rejected(f"Unknown parameter: '{where}.{key}'.", param=f"{where}.{key}")


def _check_calls(calls: Any, where: str) -> list[str]:
    if not isinstance(calls, list):
        raise wrong_type(f"{where}.tool_calls", "an array of objects", calls)
    ids: list[str] = []
    for at, call in enumerate(calls):
        param = f"{where}.tool_calls[{at}]"
        if not isinstance(call, dict) or call.get("type") != "function":
            raise Rejected(f"Missing required parameter: '{param}.type'.", param=f"{param}.type")
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise wrong_type(f"{param}.id", "a string", call.get("id"))
        if len(call["id"]) > _MAX_ID:
            raise Rejected(
                f"Invalid '{param}.id': string too long. Expected a string with maximum length "
                f"{_MAX_ID}, but got a string with length {len(call['id'])} instead.",
                param=f"{param}.id",
                code="string_above_max_length",
            )
        function = call.get("function")
        if not isinstance(function, dict):
            raise wrong_type(f"{param}.function", "an object", function)
        _check_name(function.get("name"), f"{param}.function.name")
        if not isinstance(function.get("arguments"), str):
            raise wrong_type(f"{param}.function.arguments", "a string", function.get("arguments"))
        ids.append(call["id"])
    if len(set(ids)) != len(ids):
        raise Rejected(f"Duplicate value for 'tool_call_id' in {where}.tool_calls.", param=where)
    return ids
