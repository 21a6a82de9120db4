"""Merged chunks are the same body, and what is wrong with it is still noticed; judged by h11."""

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules._shared.http.connections import ChunkMerger

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def read(pieces: list[bytes]) -> tuple[bytes, int, str]:
    """The body of an answer, the number of events it came in, and how it ended."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(HEAD)
    connection.next_event()
    body, events = b"", 0
    for piece in pieces:
        if piece:
            connection.receive_data(piece)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError:
                return body, events, "error"
            if isinstance(event, h11.Data):
                body += event.data
                events += 1
            elif isinstance(event, h11.EndOfMessage):
                return body, events, f"end {[*event.headers]}"
            else:
                break
    return body, events, "more"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    parts=st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    odd=st.sampled_from(
        [b"", b"3;x=1\r\nabc\r\n", b"zz\r\n", b"3\r\nabcd\r\n", b"0x3\r\nabc\r\n", b"00\r\n\r\n"]
    ),
    end=st.sampled_from([END, b"0\r\nx-sum: 1\r\n\r\n", b"", b"1"]),
    places=st.lists(st.integers(0, 600), max_size=8),
)
def test_any_body_cut_anywhere_is_the_same(
    parts: list[bytes], odd: bytes, end: bytes, places: list[int]
) -> None:
    data = b"".join([*map(chunk, parts), odd, *map(chunk, parts), end])
    pieces = cut(data, places)
    merger = ChunkMerger()
    body, events, ended = read(pieces)
    merged_body, merged_events, merged_ended = read([merger.feed(piece) for piece in pieces])
    assert (merged_body, merged_ended) == (body, ended)
    assert merged_events <= events


@pytest.mark.parametrize("size", [1, 1000])
def test_chunks_that_arrive_together_are_one_event(size: int) -> None:
    data = chunk(b"x" * size) * 500
    merged = ChunkMerger().feed(data)
    assert read([merged])[:2] == (b"x" * size * 500, 1)
