"""What an engine prints, as it comes: kept up to a limit, and written down for a model."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_LONGEST = 64 * 1024 * 1024
"""Bytes of one line of the engine's output that are still waited for."""


class Line(NamedTuple):
    """A line of a file: a match, or context of one; `column` is where the match begins."""

    path: str
    number: int
    text: str
    is_match: bool
    column: int


class Collector:
    """Takes an engine's output and says when there is enough of it.

    Args:
        separator: What ends a record: a newline for matches, NUL for files.
        take: Called with every record; True when no more is wanted.

    Attributes:
        full: Set once no more is wanted.
        complaints: What the engine said beside records, such as what is wrong with a pattern.
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
    """A record of `rg --json`, if it is of a line of a file."""
    event: dict[str, Any] = json.loads(record)
    if event["type"] not in ("match", "context"):
        return None
    data = event["data"]
    is_match = event["type"] == "match"
    text = _text(data["lines"])
    start: int = data["submatches"][0]["start"] if is_match and data["submatches"] else 0
    column = len(text.encode("utf-8", "replace")[:start].decode("utf-8", "replace"))
    return Line(
        path=_text(data["path"]).removeprefix("./"),
        number=data["line_number"],
        text=text.rstrip("\r\n"),
        is_match=is_match,
        column=column,
    )


def _text(value: dict[str, str]) -> str:
    """ripgrep gives what is not UTF-8 as bytes in base64."""
    if "text" in value:
        return value["text"]
    return base64.b64decode(value["bytes"]).decode("utf-8", "replace")


def path_of(record: bytes) -> str:
    """A record of a list of files."""
    return os.fsdecode(record).removeprefix("./")


def written(lines: list[Line], longest: int, *, context: bool) -> Iterator[str]:
    """`path:12:text` for matches and `path-13-text` around them, `--` where lines are left out."""
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
    """Text that stays on its line and can be stored: no other line ends, no lone surrogates."""
    return re.sub(
        r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]",
        lambda match: ascii(match[0])[1:-1],
        text,
    )
