"""Merges the chunks of a chunked HTTP body that arrived together.

A model's service sends each word as a chunk of its own. h11 makes an event of every chunk, which costs
more than reading the JSON inside.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_LONGEST_SIZE = 18
_END = b"\r\n"


class ChunkMerger:
    """Rewrites a body as it arrives: complete chunks next to each other become one.

    Everything else is passed on unchanged: the last chunk with its trailers, chunk extensions, and
    what is not valid. h11 checks it and reports what is wrong.
    """

    def __init__(self) -> None:
        self._left = 0  # bytes of an incomplete chunk that are still to come
        self._held = b""  # the beginning of a size
        self._is_done = False

    @property
    def is_between_bytes(self) -> bool:
        """Whether everything received has been passed on."""
        return not self._held

    def feed(self, data: bytes) -> bytes:
        """Return what to read instead of the bytes that arrived."""
        if self._is_done:
            return data
        data = self._held + data
        self._held = b""
        begin = at = min(self._left, len(data))
        self._left -= at
        merged: list[bytes] = []
        while at < len(data):
            size = _SIZE.match(data, at)
            if size is None:
                if len(data) - at < _LONGEST_SIZE and b"\n" not in data[at:]:
                    self._held = data[at:]
                    data = data[:at]
                else:
                    self._is_done = True
                break
            start = size.end()
            end = start + int(size[1], 16)
            if end == start:
                self._is_done = True
                break
            if end + 2 > len(data):
                self._left = end + 2 - len(data)
                break
            if data[end : end + 2] != _END:
                self._is_done = True
                break
            merged.append(data[start:end])
            at = end + 2
        if len(merged) < 2:
            return data
        body = b"".join(merged)
        return b"%b%x\r\n%b\r\n%b" % (data[:begin], len(body), body, data[at:])
