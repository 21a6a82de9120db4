"""One batch at a provider: sent once, found again after a crash, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from amplifier_app.runtime import describe
from amplifier_batch.engines.engine import Asked
from amplifier_batch.record.progress import SentBatch
from amplifier_core.llm_errors import InvalidRequestError, LLMError, NotFoundError
from amplifier_support.provider_batches import DeferredAnswer, ProviderBatches

KEPT_SECONDS = 28 * 24 * 3600.0
"""How long providers keep the answers of a batch, at least, in seconds."""

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 60.0
_SHARE_OF_AGE = 0.1
"""Seconds between two polls of a batch: this share of its age, within the two limits."""

_LONGEST_RETRY = 600.0
"""The longest time to wait that a provider may ask for, in seconds."""

_TRIES = 8
"""How many requests in a row may fail because the provider is unavailable, except polls of a batch."""


class RefusedBatchError(InvalidRequestError):
    """The provider has refused a whole batch; none of its requests is answered or paid for."""


class Job:
    """A batch, and the requests that wait for its answers.

    Args:
        batch: The batch.
        service: Its service.
        record: Records the provider's id of the batch, before the batch is waited for.
        changed: Called when there is progress.
        notice: Shows a line to the user.

    Attributes:
        batch: The batch; its id is set once it is known.
        waiting: The requests that wait, by their number in the batch.
        done: How many are answered, as last reported by the provider.
        trouble: What is done about the failure of the last poll; empty if it succeeded.
        is_guess: Whether the batch found in the provider's list may be another one.
        is_resumed: Whether an earlier run sent it.
    """

    def __init__(
        self,
        batch: SentBatch,
        service: ProviderBatches,
        record: Callable[[SentBatch], None],
        changed: Callable[[], None],
        notice: Callable[[str], None],
    ) -> None:
        self.batch = batch
        self.waiting: dict[int, Asked] = {}
        self.done = 0
        self.trouble = ""
        self.is_guess = False
        self.is_resumed = False
        self._service = service
        self._record = record
        self._changed = changed
        self._notice = notice
        self._failures = 0
        self._cancelling = asyncio.Event()
        self._is_cancelled = False

    async def send(self, group: str, bodies: Sequence[bytes]) -> None:
        """Send the batch.

        Raises:
            LLMError: The provider refused it, or was unavailable for too long.
        """
        while True:
            try:
                self._set_id(await self._service.submit(self.batch.key, group, bodies))
                return
            except LLMError as error:
                await self._recover(error)
            # The provider may have taken the batch, and only its answer was lost.
            if await self.find(()):
                return

    async def find(self, others: Collection[str]) -> bool:
        """Find the batch at the provider, if it got there.

        Args:
            others: Ids of batches that it is not.

        Raises:
            LLMError: The provider was unavailable for too long.
        """
        batch = self.batch
        while True:
            try:
                found = await self._service.find(batch.key, batch.number, batch.at, others)
            except LLMError as error:
                await self._recover(error)
                continue
            if found is not None:
                self.is_guess = not found.is_certain
                self._set_id(found.id)
            return found is not None

    async def end(self) -> None:
        """Wait until the batch has ended. After `cancel`, a batch that may be another one is not waited for.

        Raises:
            RefusedBatchError: The provider refused the batch.
            LLMError: The provider does not know it, or refused to show it.
        """
        begun = time.time()
        while True:
            if self.is_guess and self._cancelling.is_set():
                return
            try:
                state = await self._service.state(self.batch.id or "")
            except LLMError as error:
                if self._is_gone(error):
                    return
                await self._recover(error, max_failures=math.inf)
                continue
            if state.refused is not None:
                text = f"the provider refused batch {self.batch.id}: {state.refused}"
                raise RefusedBatchError(text)
            self.done = state.done
            self._reset_failures()
            if state.ended:
                return
            await self._cancel_if_asked()
            since = begun if self._is_cancelled else min(begun, self.batch.at)
            age = time.time() - since
            await self._pause(min(max(age * _SHARE_OF_AGE, _FIRST_PAUSE), _LONGEST_PAUSE))

    async def answers(self) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """Yield the answers that requests wait for.

        Raises:
            LLMError: They cannot be read.
        """
        while self.waiting:
            try:
                async for number, answer in self._service.answers(
                    self.batch.id or "", self.batch.key
                ):
                    if self.is_guess:
                        self.is_guess = False
                        self._record(self.batch)
                    yield number, answer
                return
            except LLMError as error:
                if self._is_gone(error):
                    return
                await self._recover(error)

    def cancel(self) -> None:
        """End the batch now; answers that it already has are kept."""
        self._cancelling.set()

    async def _cancel_if_asked(self) -> None:
        if not self._cancelling.is_set() or self._is_cancelled:
            return
        try:
            await self._service.cancel(self.batch.id or "")
        except LLMError as error:
            if error.retryable:
                await self._recover(error, max_failures=math.inf)
                return
            # A batch that has just ended cannot be cancelled.
            self._notice(f"cannot cancel batch {self.batch.id}: {error}")
        self._is_cancelled = True

    def _is_gone(self, error: LLMError) -> bool:
        """Whether the provider has removed the batch because of its age."""
        return isinstance(error, NotFoundError) and time.time() - self.batch.at > KEPT_SECONDS

    def _set_id(self, batch_id: str) -> None:
        self.batch = self.batch._replace(id=batch_id)
        # Another process would take a recorded batch for the right one.
        if not self.is_guess:
            self._record(self.batch)
        requests = describe.count(self.batch.number, "request")
        self._notice(f"waiting for batch {batch_id} with {requests}")
        self._reset_failures()

    def _reset_failures(self) -> None:
        self.trouble, self._failures = "", 0
        self._changed()

    async def _recover(self, error: LLMError, max_failures: float = _TRIES) -> None:
        """Wait after a temporary failure; raise any other, and one too many."""
        self._failures += 1
        if not error.retryable or self._failures >= max_failures:
            raise error
        if not self.trouble:
            self.trouble = "trying again"
            self._notice(f"{error}; trying again")
        self._changed()
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures, 10), _LONGEST_PAUSE)
        await self._pause(max(pause, min(error.retry_after or 0.0, _LONGEST_RETRY)))

    async def _pause(self, seconds: float) -> None:
        if self._cancelling.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cancelling.wait()  # A deadline ends the pause.
