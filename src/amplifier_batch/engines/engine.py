"""Who runs rows: an engine takes tasks and reports events; the dispatcher decides everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from amplifier_batch.workdirs import Workdir
from amplifier_support.provider_batches import DeferredAnswer, DeferredRequest


class RowTask(NamedTuple):
    """A row to run.

    Attributes:
        id: The key of the row's run; see `Row.key`.
        prompt: Its prompt.
        fields: Its values, for checks.
        session: The id of its session.
        begun: Whether the session exists already, and is continued.
        workdir: Its working directory.
        alone: Whether it needs a worker of its own, as it may be what killed its last one.
    """

    id: str
    prompt: str
    fields: dict[str, Any]
    session: str
    begun: bool
    workdir: Workdir
    alone: bool = False


class Spent(NamedTuple):
    """A running row has cost this much so far, in US dollars, including earlier runs of its session.

    None if the price of its model is not known.
    """

    id: str
    cost: float | None


class Ended(NamedTuple):
    """A row has ended.

    Attributes:
        id: The row.
        result: The JSON result of its run.
        is_storage_error: True if nothing could be stored, as on a full disk.
    """

    id: str
    result: dict[str, Any]
    is_storage_error: bool = False


class Stopped(NamedTuple):
    """A row was stopped by `cancel` and can be continued."""

    id: str


RAY_WORKER_DIED, PREEMPTED = "its Ray worker died", "its Ray node was pre-empted"
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", RAY_WORKER_DIED)


class Died(NamedTuple):
    """A worker died with these rows.

    Attributes:
        ids: The rows.
        how: The signal or exit code.
        began: Whether the rows had begun, so that one of them may be the cause.
    """

    ids: Sequence[str]
    how: str
    began: bool

    @property
    def may_be_from_outside(self) -> bool:
        """True for signals that the system or an operator sends, also if memory runs out."""
        return self.how in _FROM_OUTSIDE


class Asked(NamedTuple):
    """A running row requests an answer of its model that may arrive later.

    Attributes:
        id: The row.
        number: Names the request in its worker.
        request: The request.
    """

    id: str
    number: int
    request: DeferredRequest


class Reply(NamedTuple):
    """What a row gets for its request.

    Attributes:
        answer: The answer; None if the row is to send the request to its provider now.
        refused: Why there can be no answer; None if there can.
        batch: Our name for the batch with the answer.
    """

    answer: DeferredAnswer | None = None
    refused: str | None = None
    batch: str | None = None


Event = Spent | Ended | Stopped | Died | Asked


StopTime: TypeAlias = Literal["now", "after the tool", "after the request"]
"""When a row stops: a request that is stopped may be paid and not counted; so a limit waits for its end."""


class Engine(Protocol):
    """Runs rows, some of them at once."""

    async def submit(self, task: RowTask) -> None:
        """Start a row; the caller limits how many run at once."""
        ...

    async def event(self) -> Event:
        """Wait for the next event."""
        ...

    async def reply(self, asked: Asked, reply: Reply) -> None:
        """Send a row the reply to its request."""
        ...

    async def cancel(self, when: StopTime) -> None:
        """Stop all running rows.

        Args:
            when: When each row stops. A row without a running tool call or request stops now.
        """
        ...
