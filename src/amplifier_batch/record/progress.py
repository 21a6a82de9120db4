"""The progress of a batch, from the records of its journal.

    {"event": "begun", "batch", "facts"}                the facts in batch.json that stay the same; the first record
    {"event": "claimed", "id", "attempt", "session"}    a row is about to run
    {"event": "released", "id", "why", "cost"}          it stopped before its end, and will be continued
    {"event": "ended", "id", "attempt", "outcome", "cost", "seconds", "cached", "size", "runs"}
    {"event": "reopened", "rows": {id: {"outcome", "cost", "cached"}}, "file", "size"}
    {"event": "merged", "cost"}                         what earlier attempts cost in the parts of a merged batch
    {"event": "sending", "key", "service", "at", "items": [[row, session, step], …]}
    {"event": "sent", "key", "id"}                      a batch of requests is at the provider
    {"event": "dropped", "key"}                         the provider did not get or refused it
    {"event": "answered", "key"}                        it has ended, and its answers were read

`size` is that of results.jsonl after the record. `cost` is in US dollars: what the row cost since it was
claimed, or, in a reopened row, what its session has cost so far. `seconds` is how long the row ran. `cached` is how many answers of its session came from the
cache. `runs`, with `--repeat`, is how many runs of the
row have ended by then, and how many of them have passed; runs that wait for approval have neither.

A batch of requests is recorded before it is sent, and its id at the provider before it is waited for. A session
that is continued repeats its last request; the record leads to the answer that is already paid for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from amplifier_app.base.outcome import Ending
from amplifier_batch.input import parse_key
from amplifier_batch.key_table import KeyTable
from amplifier_batch.record.journal import Record
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_batches import DeferredRequest

REPLACEMENT = re.compile(r"results-[0-9a-f]{8}\.jsonl")
"""The name of the file that will replace results.jsonl."""


WAITING = Ending.WAITING.value
"""The outcome of rows that wait for approval: neither passed nor failed."""

_NOTHING = Decimal(0)

_GO_ON = (Ending.BUDGET.value, WAITING)
"""The outcomes of rows that go on with their session when they are reopened."""

OF_PROVIDER_BATCHES = ("sending", "sent", "dropped", "answered")
"""The records about batches at a provider."""


class RowState(NamedTuple):
    """The progress of a row.

    Attributes:
        attempt: The number of its last attempt; 0 before the first.
        outcome: How it ended; None while it has not.
        begun: Whether its attempt has a session to continue.
    """

    attempt: int = 0
    outcome: str | None = None
    begun: bool = False


UNTOUCHED = RowState()


class SentBatch(NamedTuple):
    """A provider batch that was sent or was about to be sent.

    Attributes:
        key: Our name for it.
        service: The service, without secrets.
        at: When it was sent, in seconds since the epoch.
        number: How many requests it has.
        id: The provider's id; None if its answer was lost.
    """

    key: str
    service: str
    at: float
    number: int
    id: str | None = None


def _follow_batch(batches: dict[str, SentBatch], record: Mapping[str, Any]) -> None:
    """Add a batch to those by key, or its id to it, if the record of the journal is about one.

    Raises:
        KeyError: It is not among them.
    """
    event = record.get("event")
    if event == "sending":
        key, number = record["key"], len(record["items"])
        batches[key] = SentBatch(key, record["service"], record["at"], number)
    elif event in OF_PROVIDER_BATCHES:
        batch = batches[record["key"]]
        if event == "sent":
            batches[batch.key] = batch._replace(id=record["id"])
        elif event == "dropped":
            del batches[batch.key]


Cell: TypeAlias = tuple[int, int]
"""The number of runs of a row that have ended, and of those that have passed."""


class Counts:
    """The counts that `status` shows; they need no memory per row.

    Attributes:
        outcomes: Ended rows by outcome.
        running: Rows that were claimed and have not ended.
        cost: US dollars, of all attempts.
        priced: How often a row has ended whose cost is known.
        ended_cost: The sum of these costs, in US dollars, from when each row was claimed.
        squares: The sum of their squares.
        timed: How often a row has ended whose time is known; earlier versions did not record it.
        seconds: The sum of these times.
        cached: Answers that came from the cache.
        size: Bytes of results.jsonl that belong to ended rows.
        replaced: The file that was to replace results.jsonl last, if any.
        open_batches: The batches of requests whose answers were not read yet, by key.
        cells: With `--repeat`, rows by how many of their runs have ended, and how many of those have passed.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.cells: Counter[Cell] = Counter()
        self.running = 0
        self.cost = Decimal(0)
        self.priced = self.timed = self.cached = 0
        self.ended_cost = self.squares = self.seconds = 0.0
        self.size = 0
        self.replaced: str | None = None
        self.open_batches: dict[str, SentBatch] = {}

    def add(self, record: Record) -> None:
        """Count a record of the journal."""
        event, cost = record.get("event"), _read_cost(record)
        if cost:
            self.cost += cost
        if event == "sending" or record.get("key") in self.open_batches:
            _follow_batch(self.open_batches, record)
        if event == "claimed":
            self.running += 1
        elif event == "released":
            self.running -= 1
        elif event == "ended":
            self.running -= 1
            self.outcomes[Ending(record["outcome"]).value] += 1
            self.size = _size_in(record)
            self.cached += int(record.get("cached", 0))
            if "seconds" in record:
                self.timed += 1
                self.seconds += float(record["seconds"])
            if record.get("cost") is not None:
                self.priced += 1
                self.ended_cost += float(cost)
                self.squares += float(cost) ** 2
            if "runs" in record:
                self._count_run(*record["runs"], has_passed=_has_passed(record))
        elif event == "reopened":
            self.cells.clear()  # `Progress` knows them.
            self.outcomes -= Counter(row["outcome"] for row in record["rows"].values())
            continued = (row for row in record["rows"].values() if row["outcome"] in _GO_ON)
            self.cached -= sum(row.get("cached", 0) for row in continued)
            self.size, self.replaced = _size_in(record), str(record["file"])
            if not REPLACEMENT.fullmatch(self.replaced):
                raise ValueError(self.replaced)
        elif event == "answered":
            self.open_batches.pop(record["key"], None)

    def _count_run(self, ended: int, passed: int, *, has_passed: bool) -> None:
        """Move a row one cell on."""
        self.cells[ended, passed] += 1
        if ended > 1:
            self.cells[ended - 1, passed - has_passed] -= 1

    @property
    def ended(self) -> int:
        """The number of rows that have ended."""
        return sum(self.outcomes.values())

    @property
    def decided(self) -> int:
        """The number of rows that have passed or failed."""
        return self.ended - self.outcomes[WAITING]

    @property
    def knows_cells(self) -> bool:
        """True if the cells are complete; otherwise only `Progress` has them."""
        return sum(ended * rows for (ended, _), rows in self.cells.items()) == self.decided

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {
            **vars(self),
            "outcomes": dict(self.outcomes),
            "cost": str(self.cost),
            "open_batches": list(self.open_batches.values()),
            "cells": [[*cell, rows] for cell, rows in self.cells.items() if rows],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Counts:
        """The counts that `as_dict` returned.

        Raises:
            ArithmeticError, KeyError, TypeError, ValueError: The data are different.
        """
        counts = cls()
        counts.outcomes.update({name: _count(rows) for name, rows in data["outcomes"].items()})
        counts.running, counts.size = _count(data["running"]), _count(data["size"])
        counts.cost = Decimal(data["cost"])
        # Earlier versions had fewer.
        for name in ("priced", "timed", "cached"):
            setattr(counts, name, _count(data.get(name, 0)))
        for name in ("seconds", "ended_cost", "squares"):
            setattr(counts, name, float(data.get(name, 0)))
        counts.replaced = data["replaced"]
        if not (counts.cost.is_finite() and isinstance(counts.replaced, str | None)):
            raise ValueError("not the counts of a batch")
        batches = (SentBatch(*values) for values in data.get("open_batches", ()))
        counts.open_batches = {batch.key: batch for batch in batches}
        counts.cells.update(
            {(ended, passed): _count(rows) for ended, passed, rows in data.get("cells", ())}
        )
        return counts


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"not a count: {value!r:.40}")
    return value


class Place(NamedTuple):
    """The place of a request: its batch, and its number in it."""

    key: str
    number: int
    step: str


class SentRequests:
    """The last request of each session that has not ended.

    Attributes:
        batches: The batches, by key.
    """

    def __init__(self) -> None:
        self.batches: dict[str, SentBatch] = {}
        self._places: dict[str, dict[str, Place]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Apply a record of the journal."""
        event = record.get("event")
        _follow_batch(self.batches, record)
        if event == "sending":
            for number, (row, session, step) in enumerate(record["items"]):
                place = Place(record["key"], number, step)
                self._places.setdefault(row, {})[session] = place
        elif event == "ended" and record["outcome"] != Ending.BUDGET.value:
            # After a limit, `retry` continues the session.
            self._places.pop(record["id"], None)

    def find_place(self, row: str, request: DeferredRequest) -> Place | None:
        """Return the place of the answer to a request, now or later; None if the request was not
        sent.
        """
        place = self._places.get(row, {}).get(request.session)
        if place is None or place.step != request.step:
            return None
        batch = self.batches.get(place.key)
        return place if batch is not None and batch.service == request.service else None

    def forget(self, row: str, session: str, key: str) -> None:
        """Forget a request that got no answer, so that it is sent again."""
        places = self._places.get(row, {})
        if session in places and places[session].key == key:
            del places[session]


def sending(batch: SentBatch, items: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """The record of a batch that is about to be sent; each item is (row, session, step)."""
    return {
        "event": "sending",
        "key": batch.key,
        "service": batch.service,
        "at": batch.at,
        "items": [list(item) for item in items],
    }


class Progress:
    """The progress of each row, and the totals.

    Args:
        repeat: How often each row runs.

    Attributes:
        running: The rows that were claimed, and neither released nor ended.
        recorded: What the sessions of begun rows have cost, as far as it is counted.
        counts: The sum.
        sent: The requests that went to providers in batches.
        cells: The cell of each row that has ended, if rows run several times.
    """

    def __init__(self, repeat: int = 1) -> None:
        self.recorded: dict[str, Decimal] = {}
        self.running: set[str] = set()
        self.counts = Counts()
        self.sent = SentRequests()
        self._repeat = repeat
        self._rows = KeyTable()
        self._states: list[RowState] = []  # few differ
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.cells: dict[str, Cell] = {}
        self._cells: dict[Cell, Cell] = {}

    def add(self, record: Record) -> None:
        """Count a record of the journal.

        Raises:
            ArithmeticError, LookupError, TypeError, ValueError: It was edited.
        """
        if not isinstance(record.get("id", ""), str):
            raise TypeError("an id is a string")
        self.counts.add(record)
        self.sent.add(record)
        event = record.get("event")
        if event == "claimed":
            self.running.add(record["id"])
            self._set(record["id"], int(record["attempt"]), None, True)
        elif event == "released":
            self.running.discard(record["id"])
            if cost := _read_cost(record):
                self.recorded[record["id"]] = self.recorded.get(record["id"], Decimal(0)) + cost
        elif event == "ended":
            self.running.discard(record["id"])
            self.recorded.pop(record["id"], None)
            self._set(record["id"], int(record["attempt"]), str(record["outcome"]))
            self._move(record["id"], 1, record)
        elif event == "reopened":
            for row_id, row in record["rows"].items():
                goes_on = row["outcome"] in _GO_ON
                if (state := self.of(row_id)) is UNTOUCHED:
                    raise KeyError(row_id)
                self._set(row_id, state.attempt, None, goes_on)
                if goes_on:
                    self.recorded[row_id] = _read_cost(row)
                self._move(row_id, -1, row)
            self.counts.cells = Counter(self.cells.values())

    def of(self, row_id: str) -> RowState:
        """The progress of a row."""
        number = self._rows.get(row_id)
        return UNTOUCHED if number is None else self._states[number]

    def cell_after(self, key: str, by: int, *, has_passed: bool) -> Cell:
        """The cell of a row after one more or one less of its runs has ended."""
        ended, passed = self.cells.get(parse_key(key, self._repeat)[0], (0, 0))
        return ended + by, passed + by * has_passed

    def _move(self, key: str, by: int, record: Mapping[str, Any]) -> None:
        if self._repeat > 1 and record["outcome"] != WAITING:
            cell = self.cell_after(key, by, has_passed=_has_passed(record))
            self.cells[parse_key(key, self._repeat)[0]] = self._cells.setdefault(cell, cell)

    def _set(self, row_id: str, *state: Any) -> None:
        if (number := self._numbers.get(state)) is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(RowState(*state))
        self._rows[row_id] = number


def _size_in(record: Record) -> int:
    size = int(record["size"])
    if size < 0:
        raise ValueError(size)
    return size


def _has_passed(record: Mapping[str, Any]) -> bool:
    return record["outcome"] == Ending.OK.value


def _read_cost(record: Mapping[str, Any]) -> Decimal:
    """The cost in a record of the journal; 0 if it has none."""
    if (cost := record.get("cost")) is None:
        return _NOTHING
    dollars = Decimal(str(cost))
    if not dollars.is_finite():
        raise ValueError(cost)
    return dollars
