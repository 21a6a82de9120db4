"""Answers over HTTP that cannot fill the memory; imported with the SDK, as it takes its HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2

LONGEST_MESSAGE = 64 * 1024 * 1024
"""Most bytes of a response, or of one event in a stream."""

ENCODING = "identity"
"""The accepted encodings: a few compressed kilobytes can become gigabytes."""


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, up to its limit."""

    def __init__(self, stream: Any, *, has_events: bool) -> None:
        self._stream = stream
        self._has_events = has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for data in self._stream:
            length += len(data)
            if length > LONGEST_MESSAGE:
                raise httpx2.ReadError(f"it sent more than {LONGEST_MESSAGE} bytes at once")
            # An event ends with an empty line.
            end = max(data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")) if self._has_events else -1
            if end >= 0:
                length = len(data) - end
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


async def bound(response: Any) -> None:
    """Make the body of a response fail if it is too long or compressed."""
    encoding = response.headers.get("content-encoding", ENCODING).strip().lower()
    if encoding not in ("", ENCODING):
        raise httpx2.ReadError(f"it answered with the unsupported encoding {encoding[:40]!r}")
    kind = response.headers.get("content-type", "").lower()
    response.stream = _Bounded(response.stream, has_events=kind.startswith("text/event-stream"))
