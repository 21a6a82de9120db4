"""The decoder reads any stream as httpx-sse, the usual library for it, reads it."""

from collections.abc import AsyncIterator

import httpx
from httpx_sse import EventSource
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier_modules._shared.http.event_stream import SSEDecoder

LINES = st.sampled_from(
    [
        "",
        "",
        ": comment",
        "event: content_block_delta",
        "event:ping",
        'data: {"text": "grüße 🌍"}',
        "data:no space",
        "data: ",
        "data",
        "data: [DONE]",
        "unknown: field",
        "event",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


class Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


async def read_by_library(chunks: list[bytes]) -> list[tuple[str, str]]:
    response = httpx.Response(
        200, headers={"content-type": "text/event-stream"}, stream=Chunks(chunks)
    )
    # The library also yields events without data, which the standard does not dispatch.
    return [
        (event.event, event.data) async for event in EventSource(response).aiter_sse() if event.data
    ]


@given(
    lines=st.lists(st.tuples(LINES, ENDS), max_size=30),
    cuts=st.lists(st.integers(min_value=1, max_value=12), max_size=60),
)
@example(lines=[("data: ", "\r"), ("", "\n"), ("data: [DONE]", "\n"), ("", "\n")], cuts=[7])
async def test_every_stream_cut_anywhere_is_read_alike(
    lines: list[tuple[str, str]], cuts: list[int]
) -> None:
    data = "".join(line + end for line, end in lines).encode()
    chunks: list[bytes] = []
    for cut in cuts:
        chunks.append(data[:cut])
        data = data[cut:]
    chunks = [chunk for chunk in [*chunks, data] if chunk]
    decoder = SSEDecoder()
    ours = [event for chunk in chunks for event in decoder.feed(chunk)]
    assert [event for event in ours if event[1]] == await read_by_library(chunks)
