"""Server-sent events from bytes, as the WHATWG HTML standard defines the stream.

Works on bytes and on whole events: a model's stream is tens of thousands of small events, and
splitting, decoding and parsing them line by line costs several times the JSON inside.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

_BOM = b"\xef\xbb\xbf"
_DEFAULT_EVENT = "message"


class SSEDecoder:
    """Turns chunks of a response body, cut anywhere, into events.

    Lines end with LF, CRLF or CR; comments, `id`, `retry` and unknown fields are ignored; several
    `data` lines are joined with LF; an event without a `data` line is not an event; bytes that are not
    UTF-8 become U+FFFD. Data after the last blank line is not an event until its own blank line arrives.
    """

    __slots__ = ("_parts", "_size", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._skip_lf = False
        self._started = False

    @property
    def pending(self) -> int:
        """Bytes received that are not yet part of an event."""
        return self._size

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """Add the next bytes and return the events they complete, as `(event type, data)`."""
        if self._skip_lf or b"\r" in chunk:
            chunk = self._lf_only(chunk)
        if not chunk:
            return []
        parts = self._parts
        if b"\n\n" not in chunk and not (chunk[0] == 10 and parts and parts[-1][-1] == 10):
            parts.append(chunk)
            self._size += len(chunk)
            return []
        data = b"".join((*parts, chunk)) if parts else chunk
        end = data.rindex(b"\n\n") + 2
        rest = data[end:]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        data = data[:end]
        if not self._started:
            self._started = True
            data = data.removeprefix(_BOM)
        return _parse(data)

    def _lf_only(self, chunk: bytes) -> bytes:
        """The chunk with LF line ends, even if CRLF is split between two chunks."""
        if self._skip_lf and chunk:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        if chunk.endswith(b"\r"):
            self._skip_lf = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def read_event(data: str) -> Any:
    """The JSON in an event.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        return from_json(data)
    except ValueError as error:
        if "recursion" in str(error):
            raise
    # Python's own parser is three times slower, but accepts half of a surrogate pair.
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def describe_invalid_event(error: Exception) -> str:
    """What is wrong with an event, from the exception that reading its fields raised."""
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    return f"an event without {missing!r}" if isinstance(missing, str) else "a malformed event"


def text_in(source: Any, field: str) -> str:
    """A field that must be text.

    Raises:
        KeyError: There is none.
        TypeError: It is something else, or `source` is not a mapping.
    """
    text = source[field]
    if type(text) is not str:
        raise TypeError(field)
    return text


def text_or_none(value: Any) -> str | None:
    """A field that may be anything, if it is text."""
    return value if isinstance(value, str) else None


def _parse(data: bytes) -> list[tuple[str, str]]:
    events: list[tuple[str, str]] = []
    for raw in data.decode("utf-8", "replace").split("\n\n"):
        # The two forms that model servers write, parsed without a loop over lines.
        if raw.startswith("event: "):
            name, _, value = raw.partition("\ndata: ")
            if value and "\n" not in value and "\n" not in name:
                events.append((name[7:] or _DEFAULT_EVENT, value))
                continue
        elif raw.startswith("data: ") and "\n" not in raw:
            events.append((_DEFAULT_EVENT, raw[6:]))
            continue
        if raw and (event := _parse_lines(raw)):
            events.append(event)
    return events


def _parse_lines(raw: str) -> tuple[str, str] | None:
    name = ""
    data: list[str] = []
    for line in raw.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
    if not data:
        return None
    return name or _DEFAULT_EVENT, "\n".join(data)
