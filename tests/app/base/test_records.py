"""The fast parser of records reads what the usual one reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.base.records import parse_record
from amplifier_support import journal

texts = st.text(st.characters(codec=None), max_size=80)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
records = st.dictionaries(texts, values, max_size=5)


def same(line: bytes) -> bool:
    """Return True if both parsers read the same, down to the types of numbers and NaN."""
    return repr(parse_record(line)) == repr(journal.parse(line))


@given(records, st.booleans())
def test_every_record_that_is_written(record: dict[str, object], is_ascii: bool) -> None:
    text = json.dumps(record, ensure_ascii=is_ascii)
    assert same(text.encode("utf-8", "surrogatepass") + b"\n")


@given(records, st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), max_size=3))
def test_damaged_lines(record: dict[str, object], changes: list[tuple[float, bytes]]) -> None:
    line = bytearray(journal.encode(record))
    for place, data in changes:
        at = int(place * len(line))
        line[at : at + 1] = data
    assert same(bytes(line))


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": 1e999, "b": -1e999, "c": 1e-999, "d": -0, "e": -0.0, "f": 1E5}',
        b'{"a": 123456789012345678901234567890, "b": 0.1000000000000000055511151231257827}',
        b'{"a": NaN, "b": Infinity, "c": -Infinity}',
        b'{"a": "\\ud83d\\ude00 \\ud83d \\u0000"}',
        b'{"a": "\x01"}',
        b'{"a": "\xff"}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": 01}',
        b'{"a": 1,}',
        b'{"a": 1} {"b": 2}',
        b"  \t{}\r\n",
        b"\x0b{}",
        b"[1]",
        b"1",
        b"",
        b"\n",
        b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"1" * 5_000 + b"}",
    ],
)
def test_lines_at_the_edges(line: bytes) -> None:
    assert same(line)


def test_equal_short_texts_are_one_object() -> None:
    line = b'{"role": "assistant"}'
    (first_key, first), (second_key, second) = (
        next(iter((parse_record(line) or {}).items())) for _ in range(2)
    )
    assert first_key is second_key
    assert first is second
