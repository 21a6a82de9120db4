"""Read an engine's output as it arrives, up to a limit, and format it for a model."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_LONGEST = 64 * 1024 * 1024
"""Longest line of the engine's output to wait for, in bytes."""


class Line(NamedTuple):
    """A line of a file, a match or context.

    Attributes:
        path: The file, below the folder.
        number: The line's number, from 1.
        text: Its text without the line end.
        is_match: Whether it matches; otherwise it is context.
        column: Where the match starts, in characters.
        raw: Its bytes.
    """

    path: str
    number: int
    text: str
    is_match: bool
    column: int
    raw: bytes


class Collector:
    """Collect an engine's output and signal when there is enough.

    Args:
        separator: What ends a record: a newline for matches, NUL for files.
        take: Called with every record; returns True when no more is needed.

    Attributes:
        full: Set once no more is needed.
        complaints: Output other than records, such as errors in the pattern.
    """

    def __init__(self, separator: bytes, take: Callable[[bytes], bool]) -> None:
        self.full = asyncio.Event()
        self.complaints: list[str] = []
        self._separator = separator
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """The next piece of output."""
        if self.full.is_set():
            return
        *records, self._rest = (self._rest + data).split(self._separator)
        for record in records:
            if self._separator == b"\n" and not record.startswith(b"{"):
                self.complaints.append(record.decode("utf-8", "replace"))
            elif self._take(record):
                self.full.set()
                return
        if len(self._rest) > _LONGEST:
            self.full.set()


def read_line(record: bytes) -> Line | None:
    """A record of `rg --json`, if it is a line of a file."""
    event: dict[str, Any] = json.loads(record)
    if event["type"] not in ("match", "context"):
        return None
    data = event["data"]
    is_match = event["type"] == "match"
    raw = _bytes(data["lines"])
    text = raw.decode("utf-8", "replace")
    start: int = data["submatches"][0]["start"] if is_match and data["submatches"] else 0
    column = len(text.encode("utf-8", "replace")[:start].decode("utf-8", "replace"))
    return Line(
        path=path_of(_bytes(data["path"])),
        number=data["line_number"],
        text=text.rstrip("\r\n"),
        is_match=is_match,
        column=column,
        raw=raw,
    )


def _bytes(value: dict[str, str]) -> bytes:
    """The bytes of a value; those that are not UTF-8 are in base64."""
    if "text" in value:
        return value["text"].encode("utf-8", "surrogatepass")
    return base64.b64decode(value["bytes"])


def path_of(name: bytes) -> str:
    """The path in a record of either kind."""
    return os.fsdecode(name).removeprefix("./")


def format_lines(lines: list[Line], longest: int, *, context: bool) -> Iterator[str]:
    """`path:12:text` for matches, `path-13-text` for context, `--` where lines are left out."""
    last: Line | None = None
    for line in lines:
        if context and last is not None:
            follows = line.path == last.path and line.number == last.number + 1
            if not follows:
                yield "--"
        mark = ":" if line.is_match else "-"
        yield f"{printable(line.path)}{mark}{line.number}{mark}{_cut(line, longest)}"
        last = line


def _cut(line: Line, longest: int) -> str:
    """The line, or the part of it around the match."""
    text = line.text
    if len(text) <= longest:
        return printable(text)
    begin = max(0, min(line.column - longest // 4, len(text) - longest))
    end = begin + longest
    before = "…" if begin else ""
    after = "…" if end < len(text) else ""
    return f"{before}{printable(text[begin:end])}{after} [line of {len(text)} characters]"


def printable(text: str) -> str:
    """Text that fits on one line and can be stored: no other line ends, no lone surrogates."""
    return re.sub(
        r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]",
        lambda match: ascii(match[0])[1:-1],
        text,
    )
