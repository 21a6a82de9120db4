"""OpenAI's Responses API: answers in its shape, streamed and whole."""

import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

from tests.support.llm.http import Request, encode
from tests.support.llm.openai import OpenAI
from tests.support.llm.responses_rules import check_request, encrypted_for
from tests.support.llm.rules import Rejected
from tests.support.llm.script import ErrorEvent, Reply, Text, Thinking, ToolCall, Usage

_INCOMPLETE = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}

Item = dict[str, Any]


class Responses(OpenAI):
    """The dialect. Thinking blocks become reasoning items; their text is the summary's.

    A reply's `stop_reason` of ``max_tokens`` makes the answer incomplete, ``refusal`` a refusal.
    """

    paths = ("/v1/responses",)

    def __init__(self) -> None:
        self._issued: set[tuple[str, str]] = set()

    def check(self, request: Request) -> None:
        """Raises `Rejected` when the API would not take the request."""
        if "application/json" not in request.headers.get("content-type", ""):
            raise Rejected("We could not parse the JSON body of your request.")
        check_request(request.body, self._issued)

    def body(self, reply: Reply, request: Request) -> bytes:
        """The whole response."""
        return encode(_finished(reply, request, _frame(request), list(_items(reply, request))))

    def events(self, reply: Reply, request: Request) -> list[bytes]:
        """The events of the stream, numbered as the API numbers them."""
        frame = _frame(request)
        items = list(_items(reply, request))
        events: list[Item] = [
            {"type": "response.created", "response": frame},
            {"type": "response.in_progress", "response": frame},
        ]
        for at, item in enumerate(items):
            events += _item_events(reply, at, item)
        if reply.unknown_events:
            events.insert(2, {"type": "response.shimmer", "nested": [None]})
        finished = _finished(reply, request, frame, items)
        ending = "incomplete" if finished["status"] == "incomplete" else "completed"
        events.append({"type": f"response.{ending}", "response": finished})
        return [_event({**event, "sequence_number": number}) for number, event in enumerate(events)]

    def remember_edited(self, events: list[bytes]) -> None:
        """Take note of the reasoning in a stream that was changed on its way."""
        for raw in events:
            with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
                item = json.loads(raw.partition(b"data: ")[2])["item"]
                self._issued.add((item["id"], item["encrypted_content"]))

    def error_event(self, fault: ErrorEvent) -> bytes:
        reported = {"code": fault.type, "message": fault.message, "param": None}
        return _event({"type": "error", **reported, "sequence_number": 0})


def _frame(request: Request) -> Item:
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": request.body["model"],
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": request.body.get("tool_choice", "auto"),
        "tools": request.body.get("tools", []),
        "service_tier": "default",
        "usage": None,
    }


def _finished(reply: Reply, request: Request, frame: Item, items: list[Item]) -> Item:
    reason = _INCOMPLETE.get(reply.stop_reason or "") if reply.stop_reason == "max_tokens" else None
    return {
        **frame,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": _usage(reply),
    }


def _items(reply: Reply, request: Request) -> Iterator[Item]:
    encrypted = "reasoning.encrypted_content" in (request.body.get("include") or ())
    for block in reply.content:
        if isinstance(block, Thinking):
            own_id = f"rs_{secrets.token_hex(12)}"
            summary = [
                {"type": "summary_text", "text": text}
                for text in block.thinking.split("\n\n")
                if text
            ]
            item: Item = {"id": own_id, "type": "reasoning", "summary": summary}
            yield {**item, "encrypted_content": encrypted_for(own_id)} if encrypted else item
        elif isinstance(block, Text):
            part: Item = {"type": "output_text", "text": block.text, "annotations": []}
            if reply.stop_reason == "refusal":
                part = {"type": "refusal", "refusal": block.text}
            yield {
                "id": f"msg_{secrets.token_hex(12)}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        elif isinstance(block, ToolCall) and _is_search(block, request):
            yield {
                "id": f"tsc_{secrets.token_hex(12)}",
                "type": "tool_search_call",
                "status": "completed",
                "execution": "client",
                "call_id": block.id,
                "arguments": json.loads(block.input_json),
            }
        elif isinstance(block, ToolCall):
            yield {
                "id": f"fc_{secrets.token_hex(12)}",
                "type": "function_call",
                "status": "completed",
                "call_id": block.id,
                "name": block.name,
                "arguments": block.input_json,
            }


def _is_search(call: ToolCall, request: Request) -> bool:
    tools = request.body.get("tools") or ()
    return call.name == "tool_search" and any(tool["type"] == "tool_search" for tool in tools)


def _item_events(reply: Reply, at: int, item: Item) -> Iterator[Item]:
    where = {"output_index": at, "item_id": item["id"]}
    if item["type"] == "reasoning":
        begun = {**item, "summary": []}
    elif item["type"] == "message":
        begun = {**item, "content": [], "status": "in_progress"}
    elif item["type"] == "tool_search_call":
        begun = {**item, "arguments": {}, "status": "in_progress"}
    else:
        begun = {**item, "arguments": "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": at, "item": begun}
    if item["type"] == "reasoning":
        for index, part in enumerate(item["summary"]):
            place = {**where, "summary_index": index}
            empty = {"type": "summary_text", "text": ""}
            yield {"type": "response.reasoning_summary_part.added", **place, "part": empty}
            for piece in reply.pieces(part["text"]):
                yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
    elif item["type"] == "message":
        part = item["content"][0]
        place = {**where, "content_index": 0}
        field = "refusal" if part["type"] == "refusal" else "text"
        name = "refusal" if field == "refusal" else "output_text"
        tokens = {} if field == "refusal" else {"logprobs": []}
        yield {"type": "response.content_part.added", **place, "part": {**part, field: ""}}
        for piece in reply.pieces(part[field], counted=True):
            yield {"type": f"response.{name}.delta", **place, **tokens, "delta": piece}
        yield {"type": f"response.{name}.done", **place, **tokens, field: part[field]}
        yield {"type": "response.content_part.done", **place, "part": part}
    elif item["type"] == "function_call":
        for piece in reply.pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        reported = {"arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **where, **reported}
    yield {"type": "response.output_item.done", "output_index": at, "item": item}


def _usage(reply: Reply) -> Item:
    usage: Usage = reply.usage
    prompt = usage.input_tokens + usage.cache_read + usage.cache_creation
    thought = sum(len(b.thinking) for b in reply.content if isinstance(b, Thinking))
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_creation,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": min(thought, usage.output_tokens)},
        "total_tokens": prompt + usage.output_tokens,
    }


def _event(value: Item) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), encode(value))
