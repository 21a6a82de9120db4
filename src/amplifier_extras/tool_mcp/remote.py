"""Connections over streamable HTTP, and the HTTP client for all requests that they need."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import lru_cache
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from amplifier_extras.tool_mcp.connection import MAX_MESSAGE, Connection
from amplifier_modules._shared.http.connections import certificates_of_environment


class RemoteAuth(httpx2.Auth):
    """Authorizes the requests to one server.

    Attributes:
        problem: Why the server refuses them, for the user; None if it does not.
        needs_user: True if only the user can help.
    """

    problem: str | None = None
    needs_user = False

    def secrets(self) -> Iterator[str]:
        """Yield the tokens and other secrets in use."""
        yield from ()


_ENCODING = "identity"
"""The accepted encodings: a few compressed kilobytes can become gigabytes."""


def http_client(
    headers: Mapping[str, str], patience: float, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return a client for requests to a server, and to what authorizes them.

    Args:
        headers: Sent with every request that is not of `auth`.
        patience: Seconds to reach it and to send to it.
        auth: Authorizes the requests.
    """
    # Calls have their own time limit; the message stream may be silent forever.
    limits = httpx2.Timeout(min(patience, 30.0), read=None)
    return httpx2.AsyncClient(
        headers={"accept-encoding": _ENCODING, **headers},
        timeout=limits,
        auth=auth,
        verify=_context_with(certificates_of_environment()),
        event_hooks={"response": [_limit_body, _note_lost_session]},
    )


def connection_to(
    url: str, headers: Mapping[str, str], patience: float, auth: RemoteAuth | None
) -> Connection:
    """Prepare a connection; see `http_client`."""
    client = http_client(headers, patience, auth)
    transport = streamable_http_client(url, http_client=client)
    if auth is None:
        return Connection(transport, lambda: None, client.aclose)
    return Connection(transport, lambda: auth.problem, client.aclose, lambda: auth.needs_user)


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, up to its limit."""

    def __init__(self, stream: Any, *, has_events: bool) -> None:
        self._stream = stream
        self._has_events = has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for data in self._stream:
            length += len(data)
            if length > MAX_MESSAGE:
                raise httpx2.ReadError(f"it sent more than {MAX_MESSAGE} bytes at once")
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
