"""Answers as they come: chunks, and the message they make."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_core.llm_errors import StreamError
from amplifier_core.message_models import ChatResponse
from amplifier_modules.provider_anthropic.stream import StreamAssembly
from tests.modules.provider_anthropic.support import HELLO, READ, playing
from tests.support.llm_server import RedactedThinking, Reply, Text, Thinking, ToolCall, Usage

pytestmark = pytest.mark.usefixtures("each_client")

RICH = Reply(
    blocks=[
        Thinking("let me think", "sig=="),
        RedactedThinking("opaque"),
        Text("first ä😀"),
        ToolCall("read", {"path": "x", "deep": {"a": [1, None]}}, id="toolu_1"),
        Text("second"),
        ToolCall("now", id="toolu_2"),
    ],
    usage=Usage(10, 20, cache_read=30, cache_creation=40),
    unknown_events=True,
    pings=2,
    chars_per_delta=3,
)
RICH_BLOCKS = [
    {"type": "thinking", "thinking": "let me think", "signature": "sig=="},
    {"type": "redacted_thinking", "data": "opaque"},
    {"type": "text", "text": "first ä😀"},
    {
        "type": "tool_call",
        "id": "toolu_1",
        "name": "read",
        "input": {"path": "x", "deep": {"a": [1, None]}},
    },
    {"type": "text", "text": "second"},
    {"type": "tool_call", "id": "toolu_2", "name": "now", "input": {}},
]


def plain(response: ChatResponse) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in response.content]


async def test_chunks_carry_the_blocks_and_the_last_one_is_the_response():
    async with playing(RICH) as setting:
        chunks, response = await setting.stream({**HELLO, "tools": [READ]})
    assert plain(response) == RICH_BLOCKS
    starts = [c for c in chunks if c["type"] == "content_block_start"]
    ends = [c for c in chunks if c["type"] == "content_block_end"]
    assert [c["index"] for c in starts] == [c["index"] for c in ends] == list(range(6))
    assert [c["block"] for c in ends] == RICH_BLOCKS
    assert starts[3] == {
        "type": "content_block_start",
        "index": 3,
        "block_type": "tool_call",
        "id": "toolu_1",
        "name": "read",
    }
    text = "".join(c["delta"] for c in chunks if c.get("delta") and c["index"] == 2)
    assert text == "first ä😀"
    arguments = "".join(c["delta"] for c in chunks if c.get("delta") and c["index"] == 3)
    assert json.loads(arguments) == RICH_BLOCKS[3]["input"]


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("something_new", "stop"),
    ],
)
async def test_the_reason_to_stop_is_translated_and_kept(stop_reason: str, finish_reason: str):
    async with playing(Reply("x", stop_reason=stop_reason)) as setting:
        response = await setting.provider.complete(HELLO)
    assert response.finish_reason == finish_reason
    assert response.metadata is not None
    assert response.metadata["stop_reason"] == stop_reason
    assert response.metadata["provider"] == "anthropic"
    assert response.metadata["model"] == "claude-sonnet-5-5"
    assert response.metadata["request_id"].startswith("req_")


async def test_calls_are_parsed_from_the_answer():
    async with playing(RICH, "none") as setting:
        response = await setting.provider.complete(HELLO)
        calls = setting.provider.parse_tool_calls(response)
        assert [(c.id, c.name, c.input) for c in calls] == [
            ("toolu_1", "read", {"path": "x", "deep": {"a": [1, None]}}),
            ("toolu_2", "now", {}),
        ]
        assert "invalid_arguments" not in calls[0]
        assert setting.provider.parse_tool_calls(await setting.provider.complete(HELLO)) == []


# -- the assembly by itself --------------------------------------------------------------------


def assembled(*events: Any) -> tuple[StreamAssembly, list[dict[str, Any]]]:
    assembly = StreamAssembly(provider="anthropic", model="m")
    chunks, failure = assembly.take(events)
    if failure is not None:
        raise failure
    return assembly, chunks


START: dict[str, Any] = {
    "type": "message_start",
    "message": {"id": "m1", "usage": {"input_tokens": 3}},
}


def block(index: int, **start: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": start}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_citations_stay_with_their_text():
    cited = {"type": "char_location", "cited_text": "x"}
    assembly, _ = assembled(
        START,
        block(0, type="text", text=""),
        delta(0, type="text_delta", text="x"),
        delta(0, type="citations_delta", citation=cited),
        stop(0),
    )
    assert assembly.content == [{"type": "text", "text": "x", "citations": [cited]}]


def test_blocks_may_be_written_side_by_side_and_left_open():
    assembly, _ = assembled(
        START,
        block(0, type="text", text=""),
        block(1, type="text", text=""),
        delta(1, type="text_delta", text="b"),
        delta(0, type="text_delta", text="a"),
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {}},
        {"type": "message_stop"},
    )
    assert [item["text"] for item in assembly.content] == ["a", "b"]
    assert assembly.is_whole


def test_blocks_the_kernel_does_not_know_are_left_out_and_named():
    assembly, chunks = assembled(
        START,
        block(0, type="server_tool_use", id="s", name="web_search", input={}),
        delta(0, type="input_json_delta", partial_json="{}"),
        stop(0),
        block(1, type="text", text=""),
        delta(1, type="text_delta", text="x"),
        stop(1),
    )
    assert assembly.omitted == ["server_tool_use"]
    assert {chunk["index"] for chunk in chunks} == {0}
    assert assembly.content == [{"type": "text", "text": "x"}]


def test_later_counts_replace_earlier_ones_and_missing_ones_do_not():
    assembly, _ = assembled(
        START,
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 7, "input_tokens": None},
        },
    )
    assert assembly.usage == {"input_tokens": 3, "output_tokens": 7}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_start", "index": 1},
        {"type": "message_delta", "delta": {}},
        {},
        [1],
        7,
        None,
    ],
)
def test_an_event_of_another_shape_is_an_error(event: Any):
    with pytest.raises(StreamError):
        assembled(START, block(0, type="text", text=""), event)


@given(st.lists(st.text(max_size=5), max_size=20))
def test_any_text_in_any_pieces_is_joined(pieces: list[str]):
    deltas = [delta(0, type="text_delta", text=piece) for piece in pieces]
    assembly, chunks = assembled(START, block(0, type="text", text=""), *deltas, stop(0))
    assert assembly.content == [{"type": "text", "text": "".join(pieces)}]
    assert "".join(c.get("delta", "") for c in chunks) == "".join(pieces)
