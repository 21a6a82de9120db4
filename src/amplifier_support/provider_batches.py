"""Batches of a provider: many requests that the service answers later, at a lower price.

A host that can wait registers the capability `provider.deferral` (`session_capabilities.DEFERRAL`). A provider
whose service has batches hands its requests to it instead of sending them, and has an attribute `batches`
through which the host sends them:

    class MyProvider:
        batches: ProviderBatches

        async def complete(self, request):
            deferral = DEFERRAL.of(self._coordinator)
            if deferral is not None:
                answer = await deferral.answer(DeferredRequest(...))
                if answer is not None:
                    return self._parse(answer)
            ...  # send the request now

Batches are described in `contracts/provider.md`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Protocol

from amplifier_support.named_tuple import NamedTuple


class DeferredRequest(NamedTuple):
    """A request that can be answered later, together with others.

    Attributes:
        service: `ProviderBatches.service` of the provider.
        group: What all requests of one batch have in common, as text that only the provider reads.
        body: The body that the service gets, without streaming, as JSON.
        session: The session that asks.
        step: A digest of the session's state: the same after the session was interrupted and
            continued, a new one after each answer.
    """

    service: str
    group: str
    body: str
    session: str
    step: str


class DeferredAnswer(NamedTuple):
    """The service's answer to a request.

    Attributes:
        status: HTTP status of the answer; None for an error that only its body describes.
        body: Its JSON object.
        is_counted: Whether the session had counted its cost before it was interrupted.
    """

    status: int | None
    body: Mapping[str, Any]
    is_counted: bool = False


UNANSWERED = DeferredAnswer(
    503, {"error": {"message": "the batch ended before the request was answered"}}
)
"""A temporary failure, for a request that its batch left without an answer."""


class Deferral(Protocol):
    """Gets requests answered in batches."""

    async def answer(self, request: DeferredRequest) -> DeferredAnswer | None:
        """Wait for the answer, for hours if need be; None if the provider is to send the request now.

        Raises:
            LLMError: The request cannot be part of a batch.
        """
        ...


class BatchState(NamedTuple):
    """The progress of a batch.

    Attributes:
        ended: Whether its answers can be read.
        done: How many requests are answered; some services report it only at the end.
        refused: Why the service refused the whole batch, if it did.
    """

    ended: bool
    done: int = 0
    refused: str | None = None


class FoundBatch(NamedTuple):
    """A batch found in the provider's list.

    Attributes:
        id: The provider's id.
        is_certain: Whether it is the batch that was asked for; otherwise only its answers can show it.
    """

    id: str
    is_certain: bool = True


class ProviderBatches(Protocol):
    """The batches of a service.

    All methods but `answers` raise LLMError, and so does its iteration. A request of a batch is known by
    its number in it, from 0.

    Attributes:
        service: The account and address, without secrets: requests with the same value can be in one batch.
        max_requests: How many requests a batch may have.
        max_bytes: How large the bodies of a batch may be in total, in bytes.
    """

    service: str
    max_requests: int
    max_bytes: int

    async def submit(self, key: str, group: str, bodies: Sequence[bytes]) -> str:
        """Send a batch and return the service's id for it.

        Args:
            key: The host's own name for it: 1 to 40 letters, digits and hyphens.
            group: The group of its requests.
            bodies: The JSON of their bodies.
        """
        ...

    async def find(
        self, key: str, number: int, since: float, others: Collection[str]
    ) -> FoundBatch | None:
        """The batch that was sent with this key, if the service has it.

        Args:
            key: As in `submit`, whose answer was lost.
            number: How many requests it has.
            since: When it was sent, in seconds since the epoch.
            others: Ids of batches that it is not.
        """
        ...

    async def state(self, batch_id: str) -> BatchState:
        """Return the progress of a batch."""
        ...

    def answers(self, batch_id: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """The answers of a batch that has ended, in any order, by the number of their request.

        A request without one was cancelled, or the batch was not sent with this key.
        """
        ...

    async def cancel(self, batch_id: str) -> None:
        """Request the end of a batch; requests that were answered keep their answers."""
        ...
