"""How requests of rows become batches, and who gets the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from amplifier_batch import economy as broker_file
from amplifier_batch.economy import Broker
from amplifier_batch.engines.pool import Asked, Reply
from amplifier_batch.record.journal import Appender, scan
from amplifier_batch.record.progress import Progress
from amplifier_core.llm_errors import (
    AuthenticationError,
    InvalidRequestError,
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
)
from amplifier_support.provider_batches import (
    BatchState,
    DeferredAnswer,
    DeferredRequest,
    FoundBatch,
)

KEPT_SECONDS = 28 * 24 * 3600


class Service:
    """Batches that end when they are allowed to, in memory.

    Attributes:
        sent: The bodies of each batch, by key.
        found: What `find` returns, in order.
        gone: Whether batches are no longer known.
        begins: Set when batches are taken.
        read: Set when the answers of a batch end.
        shown_end: Whether a batch was last shown as ended.
    """

    service = "here"
    max_requests = 3
    max_bytes = 10_000

    def __init__(self) -> None:
        self.sent: dict[str, list[Any]] = {}
        self.found: list[FoundBatch | None] = []
        self.others: list[Collection[str]] = []
        self.gone = False
        self.ends = asyncio.Event()
        self.cancelled: list[str] = []
        self.shown_end = False
        self.begins = asyncio.Event()
        self.begins.set()
        self.read = asyncio.Event()
        self.read.set()
        self.error: Exception | None = None
        self.state_error: Exception | None = None
        self.cancel_error: Exception | None = None

    async def submit(self, key: str, group: str, bodies: Sequence[bytes]) -> str:
        if self.error is not None:
            raise self.error
        await self.begins.wait()
        self.sent[key] = [json.loads(body) for body in bodies]
        return f"id-{key}"

    async def find(
        self, key: str, number: int, since: float, others: Collection[str]
    ) -> FoundBatch | None:
        self.others.append(set(others))
        return self.found.pop(0)

    async def state(self, batch_id: str) -> BatchState:
        if self.gone:
            raise NotFoundError("gone")
        if self.state_error is not None:
            raise self.state_error
        self.shown_end = self.ends.is_set() or batch_id in self.cancelled
        return BatchState(self.shown_end)

    async def answers(self, batch_id: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        if self.gone:
            raise NotFoundError("gone")
        if batch_id == f"id-{key}" and key in self.sent and batch_id not in self.cancelled:
            for number, body in enumerate(self.sent[key]):
                yield number, DeferredAnswer(200, {"to": body})
            await self.read.wait()

    async def cancel(self, batch_id: str) -> None:
        if self.cancel_error is not None:
            self.ends.set()
            raise self.cancel_error
        self.cancelled.append(batch_id)


class Run:
    """A broker with rows that ask, and the journal of their batch."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.service = service
        self.progress = Progress()
        path = folder / "journal.jsonl"
        self.journal = Appender(path, scan(path, self.progress.add))
        self.replies: dict[str, Reply] = {}
        self.failures: list[Exception] = []
        self.running: set[str] = set()
        self.workers = 100
        self.changed = asyncio.Event()
        self.broker: Broker

    def note(self, record: dict[str, Any]) -> None:
        self.journal.append(record)
        self.progress.add(record)
        self.changed.set()

    async def reply(self, asked: Asked, reply: Reply) -> None:
        self.replies[asked.id] = reply._replace(batch=None)
        self.changed.set()

    async def fail(self, error: Exception) -> None:
        self.failures.append(error)
        self.changed.set()

    def open(self, deadline: float | None = None) -> Run:
        self.broker = Broker(
            {"here": self.service},
            self.progress.sent,
            self.note,
            self.reply,
            self.fail,
            self.changed.set,
            lambda text: None,
            deadline,
        )
        return self

    def ask(self, row: str, body: Any = None, service: str = "here", step: str = "1") -> None:
        self.running.add(row)
        text = json.dumps(row if body is None else body)
        request = DeferredRequest(service, "g", text, f"session-{row}", step)
        self.broker.ask(Asked(row, 1, request))
        self.broker.update(len(self.running), self.workers)

    def end(self, row: str) -> None:
        self.running.discard(row)
        self.broker.forget(row)
        self.broker.update(len(self.running), self.workers)

    async def happens(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until(self, *rows: str) -> None:
        """Wait for the replies to these rows, or a failure."""
        await self.happens(lambda: self.replies.keys() >= set(rows) or self.failures)

    async def sent(self) -> None:
        """Wait until a batch is with the provider."""
        await self.happens(lambda: any(one.id for one in self.progress.sent.batches.values()))

    async def close(self) -> None:
        await self.broker.close()
        self.journal.close()


def answer_to(row: str) -> Reply:
    return Reply(DeferredAnswer(200, {"to": row}))


async def test_batches_keep_the_limits_of_the_service(tmp_path: Path) -> None:
    run = Run(tmp_path, Service()).open()
    for row in "abcd":
        run.ask(row)
    run.ask("e", "x" * 9_700)
    run.service.ends.set()
    await run.until(*"abcde")
    sizes = sorted(len(bodies) for bodies in run.service.sent.values())
    assert sizes == [1, 1, 3]
    assert run.replies["a"] == answer_to("a")
    await run.close()


async def test_nothing_is_sent_while_a_row_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, Service()).open()
    run.running.add("busy")
    run.ask("a")
    await asyncio.sleep(2 * broker_file.SETTLE_SECONDS)
    assert not run.service.sent
    # But not for ever.
    monkeypatch.setattr(broker_file, "HOLD_SECONDS", 0.1)
    run.broker.update(len(run.running), run.workers)
    await run.sent()
    assert list(run.service.sent.values()) == [["a"]]
    await run.close()


async def test_few_rows_work_at_a_time_when_all_answers_arrive(tmp_path: Path) -> None:
    run = Run(tmp_path, Service())
    run.workers = 1
    run.open()
    for row in "abc":
        run.ask(row)
    run.service.ends.set()
    for number in (1, 2, 3):
        await run.happens(lambda: run.replies)
        await asyncio.sleep(0.05)
        assert len(run.replies) == number
        run.end(list(run.replies)[-1])
        await asyncio.sleep(0)
    await run.close()


async def test_another_process_gets_the_pending_answers(tmp_path: Path) -> None:
    service = Service()
    run = Run(tmp_path, service).open()
    run.ask("a")
    run.ask("b")
    await run.sent()
    await run.close()
    again = Run(tmp_path, service).open()
    again.ask("a")
    service.ends.set()
    await again.until("a")
    again.end("a")
    again.running.add("b")
    again.ask("b")
    again.ask("c")
    await again.until("b")
    again.end("b")
    await again.until("c")
    assert again.replies == {row: answer_to(row) for row in "abc"}
    assert sorted(service.sent.values()) == [["a", "b"], ["c"]]
    # A later step of the same session is another request.
    again.end("c")
    again.ask("b", "later", step="2")
    await again.happens(lambda: again.replies["b"] == answer_to("later"))
    await again.close()


async def lost(tmp_path: Path, service: Service, age: float = 0.0) -> Run:
    """A run after a crash between sending a batch for row a and its answer."""
    run = Run(tmp_path, service)
    items = [["a", "session-a", "1"]]
    at = time.time() - age
    run.note({"event": "sending", "key": "k", "service": "here", "at": at, "items": items})
    service.sent["k"] = ["a"]
    return run.open()


async def test_a_batch_that_never_arrived_is_sent_again(tmp_path: Path) -> None:
    service = Service()
    run = await lost(tmp_path, service)
    service.found = [None]
    run.ask("a", "again")
    service.ends.set()
    await run.until("a")
    assert run.replies["a"] == answer_to("again")
    events = [one["event"] for one in records(tmp_path)]
    assert events == ["sending", "dropped", "sending", "sent", "answered"]
    await run.close()


async def test_a_batch_that_proves_to_be_another_one_is_searched_for_again(tmp_path: Path) -> None:
    service = Service()
    run = await lost(tmp_path, service)
    service.found = [FoundBatch("foreign", is_certain=False), FoundBatch("id-k")]
    service.ends.set()
    run.ask("a")
    await run.until("a")
    assert run.replies["a"] == answer_to("a")
    assert service.others == [set(), {"foreign"}]
    assert len(service.sent) == 1
    await run.close()


async def test_only_answers_prove_which_batch_was_found(tmp_path: Path) -> None:
    service = Service()
    run = await lost(tmp_path, service)
    foreign = FoundBatch("foreign", is_certain=False)
    service.found = [foreign, foreign, FoundBatch("id-k")]
    run.ask("a")
    await run.happens(lambda: run.broker.open_batches)
    # Its row is gone when the batch ends, and then the process.
    run.end("a")
    service.ends.set()
    await run.happens(lambda: service.shown_end)
    await run.close()
    again = Run(tmp_path, service).open()
    again.ask("a")
    await again.until("a")
    assert again.replies == {"a": answer_to("a")}
    assert [one["event"] for one in records(tmp_path)] == ["sending", "sent", "answered"]
    await again.close()


async def test_a_row_whose_worker_died_gets_the_answer_it_had_asked_for(tmp_path: Path) -> None:
    service = Service()
    service.begins.clear()
    service.read.clear()
    run = Run(tmp_path, service).open()
    run.ask("a")
    await run.happens(lambda: run.progress.sent.batches)
    # Once while the batch is sent, then while its answers are read.
    run.end("a")
    run.ask("a")
    service.begins.set()
    service.ends.set()
    await run.until("a")
    run.end("a")
    run.replies.clear()
    run.ask("a")
    service.read.set()
    await run.until("a")
    assert run.replies == {"a": answer_to("a")}
    # And once after the row ended at a limit, in a later process.
    result = {"outcome": "budget", "attempt": 1, "cost": None, "size": 0}
    run.note({"event": "ended", "id": "a", **result})
    await run.close()
    again = Run(tmp_path, service).open()
    again.ask("a")
    await again.until("a")
    assert again.replies == {"a": answer_to("a")}
    assert len(service.sent) == 1
    await again.close()


async def test_requests_whose_answers_were_deleted_are_sent_again(tmp_path: Path) -> None:
    service = Service()
    run = await lost(tmp_path, service, age=KEPT_SECONDS + 60)
    run.note({"event": "sent", "key": "k", "id": "id-k"})
    service.gone = True
    run.ask("a")
    await run.until("a")
    assert run.replies["a"].answer is not None
    assert run.replies["a"].answer.status == 503
    await run.close()


async def test_a_batch_that_the_key_cannot_see_ends_the_run(tmp_path: Path) -> None:
    service = Service()
    run = await lost(tmp_path, service)
    run.note({"event": "sent", "key": "k", "id": "id-k"})
    service.gone = True
    run.ask("a")
    await run.until("a")
    assert [type(error) for error in run.failures] == [NotFoundError]
    # The batch may be another account's: it is not sent again without being asked for.
    assert "dropped" not in [one["event"] for one in records(tmp_path)]
    await run.close()


async def test_a_refused_key_ends_the_run(tmp_path: Path) -> None:
    service = Service()
    run = Run(tmp_path, service).open()
    service.error = AuthenticationError("no")
    run.ask("a")
    await run.until("a")
    assert [type(error) for error in run.failures] == [AuthenticationError]
    await run.close()


async def test_at_the_deadline_rows_send_their_requests_directly(tmp_path: Path) -> None:
    service = Service()
    run = Run(tmp_path, service).open(time.time() + 1)
    run.ask("a")
    await run.sent()
    await run.until("a")
    assert run.replies["a"] == Reply()
    assert len(service.cancelled) == 1
    run.ask("b")
    await run.until("b")
    assert run.replies["b"] == Reply()
    assert len(service.sent) == 1
    await run.close()


@pytest.mark.parametrize("error", [InvalidRequestError, ProviderUnavailableError])
async def test_a_batch_that_ends_just_before_it_is_cancelled_keeps_its_answers(
    tmp_path: Path, error: type[LLMError]
) -> None:
    service = Service()
    service.cancel_error = error("it has already ended")
    run = Run(tmp_path, service).open(time.time() + 1)
    run.ask("a")
    await run.until("a")
    assert run.replies == {"a": answer_to("a")}
    assert not run.failures
    await run.close()


async def test_a_batch_that_may_be_at_the_provider_is_never_sent_again(tmp_path: Path) -> None:
    service = Service()
    run = Run(tmp_path, service).open()
    # A proxy in between answers with something else.
    service.error = ProviderUnavailableError("no JSON", status_code=200, retryable=False)
    run.ask("a")
    await run.until("a")
    await run.close()
    again = Run(tmp_path, service).open()
    service.error, service.state_error = None, InvalidRequestError("a proxy's", status_code=400)
    (key,) = again.progress.sent.batches
    service.sent[key] = ["a"]
    service.found = [FoundBatch(f"id-{key}")]
    again.ask("a")
    await again.until("a")
    assert [type(error) for error in again.failures] == [InvalidRequestError]
    await again.close()
    third = Run(tmp_path, service).open()
    service.state_error = None
    service.ends.set()
    third.ask("a")
    await third.until("a")
    assert third.replies == {"a": answer_to("a")}
    assert len(service.sent) == 1
    await third.close()


async def test_a_provider_that_the_plan_does_not_have_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, Service()).open()
    run.ask("a", service="elsewhere")
    await run.until("a")
    assert run.replies["a"].refused is not None
    await run.close()


async def test_requests_of_a_row_that_is_gone_are_not_sent(tmp_path: Path) -> None:
    run = Run(tmp_path, Service()).open()
    run.ask("a")
    run.ask("b")
    run.end("a")
    await run.sent()
    assert list(run.service.sent.values()) == [["b"]]
    assert run.broker.describe().startswith("batch id-")
    await run.close()


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
