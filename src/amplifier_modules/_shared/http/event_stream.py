"""Read the server-sent events of one answer, as the WHATWG HTML standard defines them, with time limits.

Works on bytes and on whole events: a model's stream is tens of thousands of small events, and
splitting, decoding and parsing them line by line costs several times the JSON inside.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_modules._shared.http.errors import TransportFaults

if TYPE_CHECKING:
    import httpx

    from amplifier_modules._shared.http.connections import Answer

_BOM = b"\xef\xbb\xbf"
_DEFAULT_EVENT = "message"
_NAMED = re.compile(r"(?:\A|(?<=\n\n))event: (.+)\ndata: (.*)\n\n")
_UNNAMED = re.compile(r"(?:\A|(?<=\n\n))data: (.*)\n\n")


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
    """Describe the fault of an event, from the exception that reading its fields raised."""
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
    text = data.decode("utf-8", "replace")
    # The two forms that model servers write are parsed without a loop, if all events have the same.
    if text.startswith("event: "):
        events = _NAMED.findall(text)
    else:
        events = [(_DEFAULT_EVENT, value) for value in _UNNAMED.findall(text)]
    if len(events) == text.count("\n\n"):
        return events
    return [event for raw in text.split("\n\n") if raw and (event := _parse_lines(raw))]


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


EVENT_LIMIT = 64 * 1024 * 1024
"""The longest event, in bytes."""


class SSEStream:
    """The events of one answer, which can be read once, as `(event type, data)`.

    `read` returns events that arrived together, iteration yields them one by one. They end when the
    service closes the answer; the reader must check whether the answer is complete.

    Attributes:
        headers: The answer's headers, looked up in lower case.

    Raises:
        StreamError: The connection broke while reading.
        LLMTimeoutError: The service stopped sending, or the time limit was reached.
    """

    def __init__(
        self,
        response: Answer | httpx.Response,
        faults: TransportFaults,
        deadline: float | None,
        patience: float,
    ) -> None:
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._chunks = cast("AsyncGenerator[bytes]", response.aiter_bytes())
        self._decoder = SSEDecoder()
        self._faults = faults
        self._deadline = deadline
        self._patience = patience
        self._time = asyncio.get_running_loop().time
        self._progress = self._time()

    async def read(self, *, progress: bool = True) -> list[tuple[str, str]] | None:
        """The next events, at least one; None at the end.

        Args:
            progress: Whether the events of the last read were part of an answer. Pings, comments and
                empty deltas are not; only with progress the time limit begins again.
        """
        if progress:
            self._progress = self._time()
        deadline = self._deadline
        while True:
            if not progress:
                stalled_at = self._progress + self._patience
                deadline = stalled_at if deadline is None else min(stalled_at, deadline)
            try:
                # Without a deadline silence alone ends the wait, after the same time.
                if deadline is None:
                    chunk = await anext(self._chunks, None)
                else:
                    async with asyncio.timeout_at(deadline):
                        chunk = await anext(self._chunks, None)
            except Exception as error:
                if isinstance(error, TimeoutError) and deadline != self._deadline:
                    raise self._faults.without_progress() from error
                named = self._faults.as_kernel_error(error)
                if named is error:
                    raise
                raise named from error
            if chunk is None:
                return None
            if events := self._decoder.feed(chunk):
                return events
            if self._decoder.pending > EVENT_LIMIT:
                raise StreamError(
                    f"{self._faults.provider} sent an event larger than {EVENT_LIMIT} bytes",
                    provider=self._faults.provider,
                    model=self._faults.model,
                    retryable=False,
                )
            progress = False

    async def __aiter__(self) -> AsyncGenerator[tuple[str, str]]:
        while (events := await self.read()) is not None:
            for event in events:
                yield event

    async def finish(self, patience: float = 0.25) -> None:
        """Read to the end, so that the connection can be reused.

        For readers that have seen the last event they need. Further events are ignored; if the
        service does not end its answer within `patience` seconds, the connection is closed.
        """
        with suppress(LLMError, TimeoutError):
            async with asyncio.timeout(patience):
                while await self.read() is not None:
                    pass

    async def aclose(self) -> None:
        """Close the answer; called by `Endpoint.stream_sse`."""
        await self._chunks.aclose()
        await self._response.aclose()
