"""Server-sent events: the standard's rules, whatever the cut between two chunks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier_modules._shared.http.event_stream import SSEDecoder


def decode(*chunks: bytes) -> list[tuple[str, str]]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("message", "a")]),
        (b"event: x\ndata: a\n\n", [("x", "a")]),
        (b"event:x\ndata:a\n\n", [("x", "a")]),
        (b"event: x\r\ndata: a\r\n\r\n", [("x", "a")]),
        (b"event: x\rdata: a\r\r", [("x", "a")]),
        (b"data: a\ndata: b\ndata:\ndata: c\n\n", [("message", "a\nb\n\nc")]),
        (b"event: x\ndata: a\ndata: b\n\n", [("x", "a\nb")]),
        (b": a comment\n\n:\n\ndata: a\n\n", [("message", "a")]),
        (b": ping\nevent: x\nid: 7\nretry: 5\ndata: a\n\n", [("x", "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
        (b"\xef\xbb\xbfevent: x\ndata: a\n\n", [("x", "a")]),
        (b"data\n\n", [("message", "")]),
        (b"data:\ndata:\n\n", [("message", "\n")]),
        (b"event: x\n\ndata: a\n\n", [("message", "a")]),
        (b"event: \ndata: a\n\n", [("message", "a")]),
        (b"data:  two spaces\n\n", [("message", " two spaces")]),
        (b"data: colon: inside\n\n", [("message", "colon: inside")]),
        (b"database: a\nDATA: b\n\n", []),
        (b"\n\n\n\ndata: a\n\n\n\ndata: b\n\n", [("message", "a"), ("message", "b")]),
        (b"data: a\n\ndata: unfinished\n", [("message", "a")]),
        (b"data: a\n\ndata: unfinished", [("message", "a")]),
        ("data: ä€😀\u2028x\x85y\n\n".encode(), [("message", "ä€😀\u2028x\x85y")]),
        (b"data: \xff\xfe\n\n", [("message", "\ufffd\ufffd")]),
        (b"data: [DONE]\n\n", [("message", "[DONE]")]),
    ],
)
def test_streams_are_read_as_the_standard_says(stream: bytes, events: list[tuple[str, str]]):
    assert decode(stream) == events
    assert decode(*(stream[at : at + 1] for at in range(len(stream)))) == events


def test_an_event_is_given_as_soon_as_its_blank_line_has_come():
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [("message", "a")]
    assert decoder.feed(b"\ndata: b\r") == []
    assert decoder.feed(b"\r") == [("message", "b")]
    assert decoder.pending == 0


def test_bytes_without_an_event_are_counted_as_pending():
    decoder = SSEDecoder()
    decoder.feed(b"data: abc")
    decoder.feed(b"def")
    assert decoder.pending == 12
    assert decoder.feed(b"\n\nda") == [("message", "abcdef")]
    assert decoder.pending == 2


def by_lines(stream: bytes) -> list[tuple[str, str]]:
    """The standard's algorithm, line by line, over the whole stream."""
    text = stream.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    events: list[tuple[str, str]] = []
    name, data = "", list[str]()
    for line in text.removeprefix("\ufeff").split("\n")[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((name or "message", "\n".join(data)))
            name, data = "", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events


LINES = st.sampled_from(
    [
        "data: ",
        "data:",
        "event: x",
        "event: ",
        ": c",
        "id: 1",
        "",
        "",
        "",
        "data: ä😀",
        "data: x",
        "y",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@given(
    st.lists(st.tuples(LINES, ENDS), max_size=30),
    st.lists(st.integers(0, 300), max_size=20),
    st.booleans(),
)
@example([("data: x", "\r"), ("", "\n"), ("data: y", "\n"), ("", "\n")], [8], False)
def test_any_stream_cut_anywhere_reads_like_the_whole(
    lines: list[tuple[str, str]], cuts: list[int], bom: bool
):
    # A lone CR before a LF would be one line end, not two: the reference sees the same bytes.
    stream = ("\ufeff" if bom else "").encode() + "".join(a + b for a, b in lines).encode()
    points = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(points)]
    assert decode(*pieces) == by_lines(stream)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(stream: bytes):
    for name, data in decode(stream, b"\n\n"):
        (name + data).encode()
