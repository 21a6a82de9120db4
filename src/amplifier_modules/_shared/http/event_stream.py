"""The event stream of one answer, read with time limits; `sse` has its grammar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_modules._shared.http.errors import TransportFaults
from amplifier_modules._shared.http.sse import SSEDecoder

if TYPE_CHECKING:
    import httpx

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
        response: httpx.Response,
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
                named = self._faults.as_kernel_error(error, streaming=True)
                if named is error:
                    raise
                raise named from error
            if chunk is None:
                return None
            if events := self._decoder.feed(chunk):
                return events
            if self._decoder.pending > EVENT_LIMIT:
                raise self._endless()
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

    def _endless(self) -> StreamError:
        return StreamError(
            f"{self._faults.provider} sent an event larger than {EVENT_LIMIT} bytes",
            provider=self._faults.provider,
            model=self._faults.model,
            retryable=False,
        )
