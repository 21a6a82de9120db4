"""Server-sent events: the standard's rules, whatever the cut between two chunks."""

import pytest
from hypothesis import given
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


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(stream: bytes):
    for name, data in decode(stream, b"\n\n"):
        (name + data).encode()
