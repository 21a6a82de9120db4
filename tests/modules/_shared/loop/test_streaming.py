"""loop-streaming: chunks become events as they come; the last one is the answer."""

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from amplifier_core.llm_errors import StreamError
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookResult
from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator
from tests.modules._shared.loop.rig import Rig, call, calls, echo_tool

FULL = {"thinking": "hmm", "signature": "sig", "text": "Hello world", "tool_calls": []}


class Streamer:
    """A provider that streams what it is given."""

    name = "streamer"

    def __init__(self, *chunks: Any) -> None:
        self.chunks = chunks
        self.closed = False

    async def complete(self, request: Any) -> Any:
        raise AssertionError("a stream was there to be used")

    async def stream_complete(self, request: Any, **kwargs: Any) -> AsyncIterator[Any]:
        try:
            for chunk in self.chunks:
                yield chunk
        finally:
            self.closed = True

    def parse_tool_calls(self, response: Any) -> list[Any]:
        return []


def delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "block_type": "text", "delta": text}


async def test_deltas_are_emitted_as_they_arrive(streaming_rig: Rig) -> None:
    rig = streaming_rig
    rig.replies(FULL, chunk_size=4)

    assert await rig.run() == "Hello world"

    deltas = rig.of("content_block:delta")
    assert "".join(d["delta"] for d in deltas if d["block_type"] == "text") == "Hello world"
    assert [d["delta"] for d in deltas if d["block_type"] == "thinking"] == ["hmm"]
    assert {d["block_index"] for d in deltas} == {0, 1}
    assert rig.last("provider:stream")["chunk"]["content"][1].text == "Hello world"
    names = rig.names(streaming=True)
    assert names.index("content_block:delta") < names.index("provider:response")


async def test_blocks_are_bracketed_in_order(streaming_rig: Rig) -> None:
    rig = streaming_rig
    rig.add_tool(echo_tool())
    rig.replies(calls(call(id="c1", text="a"), text="calling"), "done")

    await rig.run()

    first = rig.of("content_block:start")[:2]
    assert [(d["block_type"], d["block_index"]) for d in first] == [("text", 0), ("tool_call", 1)]
    assert (first[1]["id"], first[1]["name"]) == ("c1", "echo")
    ends = rig.of("content_block:end")[:2]
    assert ends[0]["block"] == {"type": "text", "text": "calling"}
    assert ends[1]["total_blocks"] == 2
    joined = "".join(
        d["delta"] for d in rig.of("content_block:delta") if d["block_type"] == "tool_call"
    )
    assert joined == '{"text": "a"}'


async def test_the_basic_loop_never_streams() -> None:
    rig = Rig(BasicOrchestrator)
    rig.replies("whole")
    assert await rig.run() == "whole"
    assert rig.of("provider:stream") == rig.of("content_block:delta") == []
    assert rig.last("content_block:end")["block"] == {"type": "text", "text": "whole"}


async def test_streaming_can_be_switched_off(streaming_rig: Rig) -> None:
    rig = streaming_rig
    rig.config = {"streaming": False}
    rig.replies("whole")

    assert await rig.run() == "whole"
    assert rig.of("provider:stream") == []
    assert len(rig.of("content_block:end")) == 1


async def test_a_provider_without_a_stream_is_asked_for_a_whole_answer(streaming_rig: Rig) -> None:
    rig = streaming_rig
    rig.replies("whole", streaming=False)

    assert await rig.run() == "whole"
    assert rig.names(streaming=True).count("content_block:start") == 1
    assert rig.of("content_block:delta") == []


async def test_a_mock_that_answers_to_every_name_is_not_streamed_from(streaming_rig: Rig) -> None:
    mock = MagicMock()
    mock.complete = AsyncMock(return_value=ChatResponse(content=[TextBlock(text="hi")]))
    mock.parse_tool_calls.return_value = []
    streaming_rig.providers["mock"] = mock

    assert await streaming_rig.run() == "hi"


async def test_chunks_of_another_form_are_passed_on(streaming_rig: Rig) -> None:
    """As in the Orchestrator Contract's sample: any chunks, the last with the full answer."""
    rig = streaming_rig
    last = {"content": [{"type": "text", "text": "ab"}]}
    rig.providers["s"] = Streamer({"text": "a"}, {"text": "b"}, last)

    assert await rig.run() == "ab"
    assert [d["chunk"] for d in rig.of("provider:stream")] == [{"text": "a"}, {"text": "b"}, last]
    assert rig.last("content_block:end")["block"] == {"type": "text", "text": "ab"}


async def test_stream_complete_may_be_a_coroutine_that_gives_the_stream(streaming_rig: Rig) -> None:
    class Awaited(Streamer):
        async def stream_complete(self, request: Any, **kwargs: Any) -> Any:
            return Streamer.stream_complete(self, request)

    streaming_rig.providers["s"] = Awaited({"content": "late"})
    assert await streaming_rig.run() == "late"


@pytest.mark.parametrize("chunks", [[], [delta("half")]])
async def test_a_stream_without_its_end_is_an_error(streaming_rig: Rig, chunks: list[Any]) -> None:
    rig = streaming_rig
    rig.providers["s"] = Streamer(*chunks)

    with pytest.raises(StreamError, match="without its final response"):
        await rig.run()

    assert rig.last("provider:error")["error"]["retryable"] is True
    assert rig.last("orchestrator:complete")["status"] == "error"
    assert rig.context.roles() == ["user"]


async def test_a_stream_that_breaks_is_an_error_and_nothing_is_stored(streaming_rig: Rig) -> None:
    rig = streaming_rig
    rig.replies({"text": "one two", "error": {"type": "StreamError", "after_chunks": 2}})

    with pytest.raises(StreamError):
        await rig.run()

    assert len(rig.of("provider:stream")) == 2
    assert rig.context.roles() == ["user"]


async def test_a_stream_that_is_stopped_is_closed_at_once(streaming_rig: Rig) -> None:
    rig = streaming_rig
    streamer = Streamer(delta("a"), delta("b"), {"content": "ab"})
    rig.providers["s"] = streamer
    rig.on("provider:stream", HookResult(action="deny", reason="stop"))

    assert await rig.run() == "Denied: stop"
    assert streamer.closed


@pytest.mark.parametrize("missing", ["index", "block_type", "delta"])
async def test_a_chunk_without_a_key_is_reported_as_such(streaming_rig: Rig, missing: str) -> None:
    chunk = {key: value for key, value in delta("a").items() if key != missing}
    streaming_rig.providers = {"streamer": Streamer(chunk)}
    with pytest.raises(TypeError, match=f"'content_block_delta' of the stream has no '{missing}'"):
        await streaming_rig.run()
