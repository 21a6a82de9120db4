"""What comes back from the Responses API: answers, cut answers, failures, faults."""

import json
from typing import Any

import pytest

from amplifier_core import llm_errors as errors
from amplifier_core.message_models import ChatResponse
from tests.modules.provider_openai.conftest import ask
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Malformed,
    Reply,
    ResetAfter,
    Stall,
    Status,
    Thinking,
    ToolCall,
)

WEATHER = {
    "name": "weather.now",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
NEW = {"api": "responses"}


async def chunks_of(provider: Any, request: Any) -> list[Any]:
    return [chunk async for chunk in provider.stream_complete(request)]


async def test_blocks_start_grow_and_end_and_the_response_comes_last(llm_server, mounted):
    reply = Reply(
        thinking=Thinking("First this.\n\nThen that."),
        text="Hello there",
        tool_calls=[ToolCall("a", {"x": 1}, id="c1"), ToolCall("b", {"y": 2}, id="c2")],
        chars_per_delta=4,
        unknown_events=True,
    )
    server = await llm_server([reply])
    provider = await mounted(server, **NEW)
    *pieces, response = await chunks_of(provider, ask())
    assert [block.type for block in response.content] == [
        "reasoning",
        "text",
        "tool_call",
        "tool_call",
    ]
    for index, kind in enumerate(["thinking", "text", "tool_call", "tool_call"]):
        own = [piece for piece in pieces if piece["index"] == index]
        assert {piece["block_type"] for piece in own} == {kind}
        assert own[0]["type"] == "content_block_start"
        assert own[-1]["type"] == "content_block_end"
        assert {piece["type"] for piece in own[1:-1]} == {"content_block_delta"}
    reported = {i: "".join(p.get("delta", "") for p in pieces if p["index"] == i) for i in range(4)}
    assert reported == {
        0: "First this.\n\nThen that.",
        1: "Hello there",
        2: '{"x":1}',
        3: '{"y":2}',
    }
    ends = [piece for piece in pieces if piece["type"] == "content_block_end"]
    assert ends[0]["block"] == {"type": "thinking", "thinking": "First this.\n\nThen that."}
    start = next(p for p in pieces if p["index"] == 2)
    assert (start["id"], start["name"]) == ("c1", "a")
    assert response.finish_reason == "tool_calls"
    assert response.metadata["stop_reason"] == "completed"
    assert response.metadata["response_id"].startswith("resp_")
    assert response.metadata["request_id"].startswith("req_")


async def test_tools_have_their_own_names_again(llm_server, mounted):
    def called(request: Any) -> Reply:
        name = request.body["tools"][0]["name"]
        return Reply(tool_calls=[ToolCall(name, {"city": "Rome"}, id="c")])

    server = await llm_server([called])
    provider = await mounted(server, **NEW)
    response = await provider.complete(ask(tools=[WEATHER]))
    assert [(c.name, c.arguments) for c in response.tool_calls] == [
        ("weather.now", {"city": "Rome"})
    ]


async def test_an_answer_that_was_cut_short_says_so(answered):
    response = await answered(Reply("half of", stop_reason="max_tokens"), **NEW)
    assert (response.finish_reason, response.content[0].text) == ("length", "half of")
    assert response.metadata["stop_reason"] == "max_output_tokens"


async def test_a_refusal_is_not_an_answer(answered):
    response = await answered(Reply("I cannot help.", stop_reason="refusal"), **NEW)
    assert response.finish_reason == "content_filter"
    assert response.metadata["refusal"] == "I cannot help."


def stream_of(*events: dict[str, Any]) -> Status:
    """An event stream as some other server would write it."""
    body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return Status(200, body=body, headers={"content-type": "text/event-stream"})


def ended(kind: str = "completed", **response: Any) -> dict[str, Any]:
    reported = {"id": "r", "model": "m", "status": kind, **response}
    return {"type": f"response.{kind}", "response": reported}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "rate_limit_exceeded", "message": "slow"}, errors.RateLimitError),
        ({"code": "server_error", "message": "oops"}, errors.ProviderUnavailableError),
        ({"code": "invalid_prompt", "message": "bad"}, errors.InvalidRequestError),
        ({"code": "invalid_base64_image", "message": "bad"}, errors.InvalidRequestError),
        ({"code": "image_too_large", "message": "big"}, errors.InvalidRequestError),
        ({"code": "image_content_policy_violation", "message": "no"}, errors.ContentFilterError),
        ({"code": "bio_policy", "message": "no"}, errors.ContentFilterError),
        ({"code": "context_length_exceeded", "message": "long"}, errors.ContextLengthError),
        (None, errors.ProviderUnavailableError),
    ],
)
async def test_a_failed_answer_is_an_error_of_its_kind(answered, error, kind):
    with pytest.raises(errors.LLMError) as caught:
        await answered(stream_of(ended("failed", error=error)), **NEW)
    assert type(caught.value) is kind
    assert caught.value.retryable is kind("").retryable


async def test_items_that_come_whole_are_read(llm_server, mounted):
    items = [
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "one"},
                {"type": "output_text", "text": "two"},
            ],
        },
        {"type": "function_call", "call_id": "c", "name": "t", "arguments": '{"a":1}'},
    ]
    done = [
        {"type": "response.output_item.done", "output_index": at, "item": item}
        for at, item in enumerate(items)
    ]
    server = await llm_server([stream_of(*done, ended())])
    *pieces, response = await chunks_of(await mounted(server, **NEW), ask())
    assert [b.type for b in response.content] == ["text", "text", "tool_call"]
    assert response.content[0].phase == "commentary"
    assert [p["delta"] for p in pieces if "delta" in p] == ["one", "two", '{"a":1}']
    assert response.metadata["omitted_items"] == ["web_search_call"]


async def test_open_blocks_are_ended_when_the_response_is_cut_off(llm_server, mounted):
    started = {"type": "function_call", "call_id": "c", "name": "t", "arguments": ""}
    cut = ended("incomplete", incomplete_details={"reason": "max_output_tokens"})
    server = await llm_server(
        [
            stream_of(
                {
                    "type": "response.output_text.delta",
                    "output_index": 0,
                    "content_index": 0,
                    "delta": "hal",
                },
                {
                    "type": "response.reasoning_text.delta",
                    "output_index": 1,
                    "content_index": 0,
                    "delta": "hm",
                },
                {"type": "response.output_item.added", "output_index": 2, "item": started},
                {
                    "type": "response.function_call_arguments.delta",
                    "output_index": 2,
                    "delta": '{"a',
                },
                cut,
            )
        ]
    )
    *pieces, response = await chunks_of(await mounted(server, **NEW), ask())
    assert response.finish_reason == "length"
    assert [b.type for b in response.content] == ["text", "tool_call"]
    assert response.tool_calls[0].invalid_arguments == '{"a'
    assert [p["type"] for p in pieces].count("content_block_end") == 3


EVENTS = 13
"""Of the reply below; the last is `response.completed`."""
REPLY = {"text": "Hello there", "tool_calls": [ToolCall("t", {"a": 1}, id="c")]}


@pytest.mark.parametrize(
    "fault",
    [Cut, lambda after: Cut(after, clean=True), ResetAfter, Stall, ErrorEvent, Malformed],
    ids=["cut", "ended", "reset", "stall", "error", "malformed"],
)
async def test_a_fault_before_the_end_is_never_success(llm_server, mounted, fault):
    for after in range(EVENTS):
        server = await llm_server([Reply(**REPLY, fault=fault(after))])
        provider = await mounted(server, **NEW, idle_timeout=0.05)
        chunks: list[Any] = []
        with pytest.raises(errors.LLMError):
            await _collect(provider, chunks)
        assert not any(isinstance(chunk, ChatResponse) for chunk in chunks), after


async def _collect(provider: Any, chunks: list[Any]) -> None:
    async for chunk in provider.stream_complete(ask()):
        chunks.append(chunk)  # noqa: PERF401 - those before the error count
