"""A server over streamable HTTP, whose answers cannot fill the memory."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from amplifier_extras.tool_mcp.connection import MAX_MESSAGE, Connection
from amplifier_modules._shared.http.certificates import certificates_of_environment

LONGEST_MESSAGE = MAX_MESSAGE
"""Most bytes of a response, or of one event in a stream."""

_ENCODING = "identity"
"""The accepted encodings: a few compressed kilobytes can become gigabytes."""


def connection_to(url: str, headers: Mapping[str, str], patience: float) -> Connection:
    """Prepare a connection.

    Args:
        url: The server's address.
        headers: Sent with every request.
        patience: Seconds to reach it and to send to it.
    """
    # Calls have their own time limit; the message stream may be silent forever.
    limits = httpx2.Timeout(min(patience, 30.0), read=None)
    client = httpx2.AsyncClient(
        headers={"accept-encoding": _ENCODING, **headers},
        timeout=limits,
        verify=_context_with(certificates_of_environment()),
        event_hooks={"response": [_limit_body, _note_lost_session]},
    )
    transport = streamable_http_client(url, http_client=client)
    return Connection(transport, lambda: None, client.aclose)


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


async def _limit_body(response: Any) -> None:
    """Make the body of a response fail if it is too long or compressed."""
    encoding = response.headers.get("content-encoding", _ENCODING).strip().lower()
    if encoding not in ("", _ENCODING):
        raise httpx2.ReadError(f"it answered with the unsupported encoding {encoding[:40]!r}")
    kind = response.headers.get("content-type", "").lower()
    response.stream = _Bounded(response.stream, has_events=kind.startswith("text/event-stream"))


@lru_cache(maxsize=1)
def _context_with(_certificates: tuple[str | None, ...]) -> ssl.SSLContext:
    """The TLS context of httpx2; to load the certificates of the system takes tens of milliseconds."""
    return httpx2.create_ssl_context()


async def _note_lost_session(response: Any) -> None:
    """Make the SDK treat a 404 within a session as the protocol does: the session is unknown.

    It prefers an error in the body, which does not show that the call was not looked at.
    """
    if response.status_code == 404 and "mcp-session-id" in response.request.headers:
        response.headers["content-type"] = "text/plain"
