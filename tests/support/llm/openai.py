"""OpenAI's Chat Completions: answers in its shape, streamed and whole."""

import secrets
import time
from typing import Any

from tests.support.llm.http import Request, encode
from tests.support.llm.openai_rules import check_request
from tests.support.llm.rules import Rejected
from tests.support.llm.script import ErrorEvent, Reply, Text, Thinking, ToolCall, Usage

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
}
_ERROR_TYPES = {
    401: "invalid_request_error",
    403: "invalid_request_error",
    429: "requests",
}


class OpenAI:
    """The dialect. Thinking blocks become `reasoning_content`, as compatible servers send it."""

    paths = ("/v1/chat/completions",)

    def authenticate(self, request: Request, key: str | None) -> None:
        """Raises `Rejected` with 401 when the key is missing or another."""
        header = request.headers.get("authorization", "")
        given = header[7:].strip() if header.lower().startswith("bearer ") else ""
        if not given:
            message = "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
            raise Rejected(message, status=401)
        if key is not None and given != key:
            message = f"Incorrect API key provided: {given[:4]}***."
            raise Rejected(message, status=401, code="invalid_api_key")

    def check(self, request: Request) -> None:
        """Raises `Rejected` when the API would not take the request."""
        if "application/json" not in request.headers.get("content-type", ""):
            raise Rejected("We could not parse the JSON body of your request.")
        check_request(request.body)

    def error(
        self, status: int, message: str, kind: str | None = None, param: str | None = None
    ) -> Any:
        default = "server_error" if status >= 500 else "invalid_request_error"
        error_type = kind or _ERROR_TYPES.get(status, default)
        code = "rate_limit_exceeded" if status == 429 else None
        return {"error": {"message": message, "type": error_type, "param": param, "code": code}}

    def headers(self) -> dict[str, str]:
        return {"x-request-id": f"req_{secrets.token_hex(12)}"}

    def body(self, reply: Reply, request: Request) -> bytes:
        """The whole completion."""
        text = "".join(b.text for b in reply.content if isinstance(b, Text))
        thinking = "".join(b.thinking for b in reply.content if isinstance(b, Thinking))
        calls = [b for b in reply.content if isinstance(b, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(reply),
        }
        completion = self._frame(request, "chat.completion")
        return encode({**completion, "choices": [choice], "usage": _usage(reply.usage)})

    def events(self, reply: Reply, request: Request) -> list[bytes]:
        """The `data:` lines of the stream, each with its blank line, `[DONE]` last."""
        frame = self._frame(request, "chat.completion.chunk")
        wants_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        if wants_usage:
            frame["usage"] = None
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        calls = 0
        for block in reply.content:
            if isinstance(block, Text):
                deltas += [{"content": p} for p in reply.pieces(block.text, counted=True)]
            elif isinstance(block, Thinking):
                deltas += [{"reasoning_content": p} for p in reply.pieces(block.thinking)]
            elif isinstance(block, ToolCall):
                deltas += _call_deltas(reply, block, calls)
                calls += 1
        events = [_chunk(frame, delta, None) for delta in deltas]
        if reply.unknown_events:
            events.insert(1, _data({**frame, "choices": [], "shimmer": {"nested": [None]}}))
            events.insert(1, b": a comment\n\n")
        events.append(_chunk(frame, {}, _finish_reason(reply)))
        if wants_usage:
            events.append(_data({**frame, "choices": [], "usage": _usage(reply.usage)}))
        return [*events, b"data: [DONE]\n\n"]

    def error_event(self, fault: ErrorEvent) -> bytes:
        error = {"message": fault.message, "type": fault.type, "param": None, "code": None}
        return _data({"error": error})

    def remember_edited(self, events: list[bytes]) -> None:
        """Nothing that these APIs send has to come back unchanged."""

    def model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "system"}

    def models(self, names: list[str]) -> Any:
        return {"object": "list", "data": [self.model(name) for name in names]}

    def _frame(self, request: Request, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": request.body["model"],
            "system_fingerprint": None,
        }


def _finish_reason(reply: Reply) -> str:
    if reply.stop_reason is not None:
        return _FINISH.get(reply.stop_reason, reply.stop_reason)
    return "tool_calls" if any(isinstance(b, ToolCall) for b in reply.content) else "stop"


def _usage(usage: Usage) -> dict[str, Any]:
    prompt = usage.input_tokens + usage.cache_read + usage.cache_creation
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.input_json}
    return {"id": call.id, "type": "function", "function": function}


def _call_deltas(reply: Reply, call: ToolCall, index: int) -> list[dict[str, Any]]:
    opening = {**_call(call), "function": {"name": call.name, "arguments": ""}, "index": index}
    pieces = reply.pieces(call.input_json)
    return [
        {"tool_calls": [opening]},
        *({"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in pieces),
    ]


def _chunk(frame: dict[str, Any], delta: dict[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _data({**frame, "choices": [choice]})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encode(value)
