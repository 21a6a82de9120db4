"""Anthropic's Messages API: answers in its shape, streamed and whole."""

import secrets
from typing import Any

from tests.support.llm.anthropic_rules import check_request
from tests.support.llm.anthropic_thinking import REDACTED_DATA, Issued, sign
from tests.support.llm.http import Request, encode
from tests.support.llm.rules import Rejected
from tests.support.llm.script import (
    Block,
    ErrorEvent,
    RedactedThinking,
    Reply,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Anthropic:
    """The dialect; one per server, because it remembers what it has signed."""

    paths = ("/v1/messages",)

    def __init__(self) -> None:
        self.issued = Issued()

    def authenticate(self, request: Request, key: str | None) -> None:
        """Raises `Rejected` with 401 when the key is missing or another."""
        given = request.headers.get("x-api-key")
        bearer = request.headers.get("authorization", "")
        if given is None and bearer.lower().startswith("bearer "):
            given = bearer[7:]
        if not given:
            message = "x-api-key header is required"
        elif key is not None and given != key:
            message = "invalid x-api-key"
        else:
            return
        raise Rejected(message, status=401, error="authentication_error")

    def check(self, request: Request, *, counting: bool = False) -> None:
        """Raises `Rejected` when the API would not take the request."""
        if "anthropic-version" not in request.headers:
            raise Rejected("anthropic-version: header is required")
        if "application/json" not in request.headers.get("content-type", ""):
            raise Rejected("content-type: must be application/json")
        check_request(request.body, self.issued, counting=counting)

    def error(
        self, status: int, message: str, kind: str | None = None, param: str | None = None
    ) -> Any:
        error_type = kind or _ERROR_TYPES.get(status, "api_error")
        return {
            "type": "error",
            "error": {"type": error_type, "message": message},
            "request_id": f"req_{secrets.token_hex(12)}",
        }

    def headers(self) -> dict[str, str]:
        return {"request-id": f"req_{secrets.token_hex(12)}"}

    def body(self, reply: Reply, request: Request) -> bytes:
        """The whole message."""
        message = self._message(request)
        message["content"] = [_block(block) for block in reply.content]
        message["stop_reason"] = _stop_reason(reply)
        message["usage"] = _usage(reply.usage)
        self.issued.remember(message["content"])
        return encode(message)

    def events(self, reply: Reply, request: Request) -> list[bytes]:
        """The server-sent events of the message, each with its blank line."""
        message = self._message(request)
        message["usage"] = {**_usage(reply.usage), "output_tokens": 1}
        events = [_event("message_start", {"message": message})]
        blocks = [_block(block) for block in reply.content]
        for index, (scripted, block) in enumerate(zip(reply.content, blocks, strict=True)):
            events += _block_events(reply, index, scripted, block)
            if index == 0:
                events[2:2] = [_event("ping", {})] * reply.pings
        if reply.unknown_events:
            events.insert(1, _event("session_hint", {"hint": {"deeply": ["nested", None]}}))
            unknown = {"index": 0, "delta": {"type": "shimmer_delta", "shimmer": "?"}}
            if blocks:
                events.insert(3, _event("content_block_delta", unknown))
        end = {
            "delta": {"stop_reason": _stop_reason(reply), "stop_sequence": None},
            "usage": _usage(reply.usage),
        }
        if reply.edit is None:
            self.issued.remember(blocks)
        return [*events, _event("message_delta", end), _event("message_stop", {})]

    def error_event(self, fault: ErrorEvent) -> bytes:
        return _event("error", {"error": {"type": fault.type, "message": fault.message}})

    def remember_edited(self, events: list[bytes]) -> None:
        """Take note of the thinking in a stream that was changed on its way."""
        self.issued.remember_stream(events)

    def count(self, request: Request) -> Any:
        """Answer of count_tokens: a quarter of the request's bytes."""
        return {"input_tokens": max(1, len(request.raw) // 4)}

    def model(self, name: str) -> dict[str, Any]:
        return {
            "type": "model",
            "id": name,
            "display_name": name.replace("-", " ").title(),
            "created_at": "2025-01-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": 200_000,
            "max_tokens": 64_000,
        }

    def models(self, names: list[str]) -> Any:
        return {
            "data": [self.model(name) for name in names],
            "has_more": False,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }

    def _message(self, request: Request) -> dict[str, Any]:
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": request.body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }


def _stop_reason(reply: Reply) -> str:
    if reply.stop_reason is not None:
        return reply.stop_reason
    return "tool_use" if any(isinstance(b, ToolCall) for b in reply.content) else "end_turn"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output_tokens,
    }


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(thinking, signature):
            signature = sign(thinking) if signature is None else signature
            return {"type": "thinking", "thinking": thinking, "signature": signature}
        case RedactedThinking(data):
            return {"type": "redacted_thinking", "data": REDACTED_DATA if data is None else data}
        case ToolCall():
            return {
                "type": "tool_use",
                "id": block.id,
                "name": block.name,
                "input": dict(block.input),
            }


def _block_events(reply: Reply, index: int, scripted: Block, block: dict[str, Any]) -> list[bytes]:
    deltas: list[dict[str, str]] = []
    match scripted:
        case Text(text):
            opening = {"type": "text", "text": ""}
            pieces = reply.pieces(text, counted=True)
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        case Thinking(thinking):
            opening = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": p} for p in reply.pieces(thinking)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case RedactedThinking():
            opening = block
        case ToolCall():
            opening = {**block, "input": {}}
            pieces = ["", *reply.pieces(scripted.input_json)] if scripted.input_json else [""]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        _event("content_block_start", {"index": index, "content_block": opening}),
        *(_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas),
        _event("content_block_stop", {"index": index}),
    ]


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **data}))
