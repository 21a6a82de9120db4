"""The pace of requests with one key: what is sent stays within what a strict service takes."""

import asyncio
import heapq
import itertools
import json
import math
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from amplifier_modules._shared import pacing as rate_limiter_file
from amplifier_modules._shared.pacing import (
    Pace,
    RateLimiter,
    Reported,
    Ticket,
    find_rate_limiter,
    reported_limits,
)
from amplifier_support.files import try_lock
from tests.support.llm.rate_limit import RateLimit, Style
from tests.support.thorough import Scale

NOW = 1_000_000_000.0
SEED = 20261122


class Simulation:
    """Processes with many rows each that share a pace, against a strict service, in simulated time.

    Attributes:
        seconds: How long it took.
        answers: How many requests were answered.
    """

    def __init__(
        self,
        limit: int,
        window: float,
        style: Style,
        latency: float = 1.0,
        workers: int = 1000,
        *,
        left: float | None = None,
        counted: Literal["requests", "tokens"] = "requests",
        closes: float | None = None,
        size: float = 100,
        estimate: float = 100,
        first: float = 0.0,
        change: Callable[[dict[str, str], int], None] = lambda headers, number: None,
    ) -> None:
        """Set up the service.

        Args:
            limit, window, style, left, counted, closes: See `RateLimit`.
            latency: Seconds to an answer, about.
            workers: How many requests run at a time.
            size: The tokens of a request.
            estimate: The tokens that it is taken for.
            first: Seconds by which the first answers, sent before one was seen, are late.
            change: Changes the headers of the answer with a number.
        """
        self.now = NOW
        self.service = RateLimit(
            limit,
            window=window,
            style=style,
            clock=lambda: self.now,
            left=left,
            counted=counted,
            closes=closes,
        )
        self.pace = Pace()
        self._amount, self._estimate = size if counted == "tokens" else 1, estimate
        self._first, self._change = first, change
        self.answers = 0
        self._draw = random.Random(SEED)
        self._latency = latency
        self._running, self._workers = 0, workers
        self._queues: list[deque[int]] = []
        self._asking: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def seconds(self) -> float:
        return self.now - NOW

    def run(self, requests: int, *, processes: int = 2, others: float = 0.0) -> None:
        """Send requests until all are answered; `others` a second come from elsewhere."""
        for number in range(processes):
            waiting = deque(range(number, requests, processes))
            self._queues.append(waiting)  # ids stay theirs
            self._wake(0, waiting)
        if others:
            self._at(0, lambda: self._other(others))
        while self.answers < requests:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._count), event))

    def _wake(self, delay: float, waiting: deque[int]) -> None:
        """Have the first in the queue of a process ask, unless it will anyway."""
        if id(waiting) not in self._asking:
            self._asking.add(id(waiting))
            self._at(delay, lambda: self._head(waiting))

    def _head(self, waiting: deque[int]) -> None:
        self._asking.discard(id(waiting))
        if not waiting or self._running >= self._workers:
            return
        taken = self.pace.take(self._estimate, self.now)
        if not isinstance(taken, Ticket):
            self._wake(min(taken * self._draw.uniform(1, 1.05), 1), waiting)
            return
        self._running += 1
        row, latency = waiting.popleft(), self._draw.uniform(0.1, 2) * self._latency
        left = latency * 3 / 4 + (0 if self.pace.is_known else self._first)
        self._at(latency / 4, lambda: self._arrive(row, taken, left, waiting))
        self._wake(0, waiting)

    def _arrive(self, row: int, ticket: Ticket, left: float, waiting: deque[int]) -> None:
        is_taken, headers = self.service.take(self._amount)
        self._change(headers, len(self.service.arrived))
        after = float(headers["retry-after"]) if "retry-after" in headers else None

        def answer() -> None:
            limits = reported_limits(headers, self.now)
            refused = not is_taken
            self.pace.record_answer(ticket, limits, self.now, refused=refused, retry_after=after)
            self._running -= 1
            if is_taken:
                self.answers += 1
            else:
                waiting.append(row)
            for queue in self._queues:
                self._wake(0 if is_taken else after or 1, queue)

        # A refusal comes at once.
        self._at(left if is_taken else min(left, 0.1), answer)

    def _other(self, rate: float) -> None:
        self.service.take()
        self.service.arrived.pop()
        self._at(self._draw.expovariate(rate), lambda: self._other(rate))


class Case(NamedTuple):
    limit: int
    window: float
    style: Style
    requests: int
    latency: float = 1.0


@pytest.mark.parametrize(
    "case",
    [
        Case(50, 60, "openai", 150),
        Case(50, 60, "anthropic", 150),
        Case(600, 60, "openai", 1200),
        Case(600, 60, "anthropic", 1200),
        Case(600, 60, "anthropic", 1200, latency=20),
        Case(20, 2, "openai", 100),
    ],
)
def test_a_service_that_reports_its_limit_refuses_nothing(case: Case) -> None:
    run = Simulation(*case[:3], case.latency)
    run.run(case.requests)
    assert run.service.refused == 0
    # Little of what is allowed is left unused.
    assert run.seconds <= 1.2 * case.requests * case.window / case.limit + 4 * case.latency


@pytest.mark.parametrize("style", ["openai", "anthropic"])
@pytest.mark.parametrize("counted", ["requests", "tokens"])
def test_a_key_that_is_partly_used_is_used_at_once_and_fully(
    style: Style, counted: Literal["requests", "tokens"], scale: Scale
) -> None:
    size = 1 if counted == "requests" else 100
    shares, numbers = scale((0.01, 0.2, 1), (0.01, 0.1, 0.2, 0.5, 1)), scale((200,), (200, 400))
    for share, requests, latency in itertools.product(shares, numbers, (0.2, 2)):
        left = 300 * share
        run = Simulation(
            300 * size, 60, style, latency, left=left * size, counted=counted, size=size
        )
        run.run(requests, processes=3)
        allowed = max(0.0, (requests - left) / 5)
        # Tokens are only estimated, and sent in tenths at first.
        steps = 8 if counted == "tokens" else 4
        assert run.service.refused == 0, (share, requests, latency)
        assert run.service.most_in_a_window() <= left + 1.05 * 300, (share, requests, latency)
        assert run.seconds <= 1.1 * allowed + 1 + steps * latency, (share, requests, latency)


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_nothing_is_sent_before_the_end_of_a_used_up_fixed_window(
    style: Style, scale: Scale
) -> None:
    every_end = scale((7, 41), (7, 20, 35, 41))
    for closes, left, latency in itertools.product(every_end, (10, 75, 280), (0.2, 2)):
        run = Simulation(300, 60, style, latency, left=left, closes=closes)
        run.run(700, processes=3)
        allowed = closes + 60 * (math.ceil((700 - left) / 300) - 1)
        assert run.service.refused == 0, (closes, left, latency)
        assert run.seconds <= 1.1 * allowed + 3 + 6 * latency, (closes, left, latency)


def test_a_fixed_window_in_the_proportion_of_a_bucket_refuses_few_requests() -> None:
    run = Simulation(300, 60, "openai", left=60, closes=48)
    run.run(700)
    assert run.service.refused <= 3
    assert run.seconds <= 1.1 * 168


def test_answers_without_usable_headers_do_not_stop_the_requests() -> None:
    def drop(headers: dict[str, str], number: int) -> None:
        if number % 3 == 0:
            headers.clear()

    def without_reset(headers: dict[str, str], number: int) -> None:
        headers.pop("x-ratelimit-reset-requests", None)

    def past(headers: dict[str, str], number: int) -> None:
        headers["x-ratelimit-reset-requests"] = "1970-01-01T00:00:00Z"

    for change, first in ((drop, 0.0), (without_reset, 0.0), (past, 0.0), (drop, 20.0)):
        run = Simulation(300, 60, "openai", left=60, change=change, first=first)
        run.run(200, processes=3)
        assert run.service.refused == 0, (change, first)
        # A late answer may be about any time since its request.
        assert run.seconds <= 1.1 * 28 + 4 + first, (change, first)


def test_more_tokens_than_estimated_are_noticed() -> None:
    run = Simulation(30_000, 60, "openai", left=24_000, counted="tokens", size=100, estimate=50)
    run.run(600)
    assert run.service.refused <= 0.2 * 600
    assert run.seconds <= 1.2 * 72 + 4
    # Fewer, too: answers raise what is left.
    run = Simulation(30_000, 60, "openai", left=24_000, counted="tokens", size=100, estimate=300)
    run.run(600)
    assert run.service.refused == 0
    assert run.seconds <= 1.5 * 72


@pytest.mark.parametrize("style", ["retry-after", "none"])
def test_a_service_that_reports_nothing_refuses_few_requests(style: Style) -> None:
    run = Simulation(120, 60, style, 0.2, workers=16)
    run.run(600)
    assert run.service.refused >= 1
    assert len(run.service.arrived) <= 1.2 * 600
    assert run.seconds <= 3 * 600 / 2


def test_requests_of_others_with_the_same_key_slow_these() -> None:
    run = Simulation(600, 60, "openai")
    run.run(1000, others=5)
    assert len(run.service.arrived) <= 1.05 * 1000
    assert run.seconds >= 0.8 * 1000 / 10


def test_a_limit_of_a_day_may_be_used_at_once() -> None:
    run = Simulation(1000, 86400, "openai")
    run.run(600)
    assert run.service.refused == 0
    assert run.seconds < 120


def test_long_requests_wait_for_their_tokens_and_do_not_wait_for_ever() -> None:
    pace, tokens = Pace(), Reported(6000, 0, 60.0)
    first = pace.take(10, NOW)
    assert isinstance(first, Ticket)
    pace.record_answer(first, {"tokens": tokens}, NOW, refused=False, retry_after=None)
    now, sent = NOW, 0
    while now < NOW + 120:
        taken = pace.take(2000, now)
        if isinstance(taken, Ticket):
            sent += 1
        else:
            assert 0 < taken <= 60
            now += taken
    # 100 tokens come back in a second.
    assert 5 <= sent <= 7


def test_after_a_refusal_no_request_is_sent_before_its_time_and_then_not_all_at_once() -> None:
    pace = Pace()
    tickets = [pace.take(1, NOW)]
    assert isinstance(tickets[0], Ticket)
    # The first answer shows the limits; until then it is alone for a while.
    assert not isinstance(pace.take(1, NOW + 1), Ticket)
    full = {"requests": Reported(600, 599, 60.0)}
    pace.record_answer(tickets[0], full, NOW, refused=False, retry_after=None)
    taken = pace.take(1, NOW)
    assert isinstance(taken, Ticket)
    none = {"requests": Reported(600, 0, 60.0)}
    pace.record_answer(taken, none, NOW, refused=True, retry_after=30)
    assert pace.take(1, NOW) == pytest.approx(30)
    at_once = 0
    while isinstance(pace.take(1, NOW + 30.5), Ticket):
        at_once += 1
    assert 1 <= at_once <= 6


def test_a_clock_that_was_set_back_blocks_for_two_minutes_at_most() -> None:
    pace = Pace()
    taken = pace.take(1, NOW)
    assert isinstance(taken, Ticket)
    pace.record_answer(taken, {}, NOW, refused=True, retry_after=60)
    wait = pace.take(1, NOW - 100_000)
    assert not isinstance(wait, Ticket)
    assert wait <= 120
    wait = pace.take(1, NOW - 100_000 + 121)
    assert not isinstance(wait, Ticket)
    assert isinstance(pace.take(1, NOW - 100_000 + 121 + wait), Ticket)


def test_a_lost_first_request_lets_the_next_one_try() -> None:
    pace = Pace()
    assert isinstance(pace.take(1, NOW), Ticket)
    pace.record_failure()
    assert isinstance(pace.take(1, NOW), Ticket)
    # Its process was killed: another one tries after a while.
    assert not isinstance(pace.take(1, NOW + 1), Ticket)
    assert isinstance(pace.take(1, NOW + 3), Ticket)


def test_unanswered_requests_grow_slowly_and_are_forgotten_after_a_pause() -> None:
    pace, sent = Pace(), []
    for now in range(20):
        sent.append(0)
        while isinstance(pace.take(1, NOW + now), Ticket):
            sent[-1] += 1
    assert sent[:7] == [1, 0, 1, 0, 2, 0, 4]
    assert sum(sent) <= 28
    assert isinstance(pace.take(1, NOW + 3600), Ticket)
    assert not isinstance(pace.take(1, NOW + 3601), Ticket)


def test_a_single_refusal_of_a_few_requests_costs_seconds_not_minutes() -> None:
    pace, now = Pace(), NOW
    first = pace.take(1, now)
    assert isinstance(first, Ticket)
    pace.record_answer(first, {}, now, refused=True, retry_after=1)
    for _ in range(5):
        while not isinstance(taken := pace.take(1, now), Ticket):
            now += taken
        pace.record_answer(taken, {}, now, refused=False, retry_after=None)
    assert now - NOW < 15


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-limit-tokens": "150000",
                "x-ratelimit-remaining-tokens": "75000",
                "x-ratelimit-reset-tokens": "0m30s",
            },
            {"requests": Reported(60, 59, 60), "tokens": Reported(150000, 75000, 60)},
        ),
        (
            {
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "10",
                "anthropic-ratelimit-requests-reset": "2001-09-09T01:47:28Z",
                "date": "Sun, 09 Sep 2001 01:46:40 GMT",
                "anthropic-ratelimit-input-tokens-limit": "1000",
                "anthropic-ratelimit-input-tokens-remaining": "1000",
                "anthropic-ratelimit-tokens-limit": "9",
                "anthropic-ratelimit-tokens-remaining": "9",
            },
            {"requests": Reported(50, 10, 60, 1 / 48), "tokens": Reported(1000, 1000, None)},
        ),
        (
            {
                "x-ratelimit-limit-requests": "200",
                "x-ratelimit-remaining-requests": "199",
                "x-ratelimit-reset-requests": "7m12s",
            },
            {"requests": Reported(200, 199, 86400)},
        ),
        (
            {
                "x-ratelimit-limit-requests": "10",
                "x-ratelimit-remaining-requests": "9",
                "x-ratelimit-reset-requests": "0.12",
            },
            {"requests": Reported(10, 9, 1.2)},
        ),
        ({"x-ratelimit-limit-requests": "many", "x-ratelimit-remaining-requests": "-1"}, {}),
        ({"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0"}, {}),
        (
            {
                "x-ratelimit-limit-requests": "9",
                "x-ratelimit-remaining-requests": "1",
                "x-ratelimit-reset-requests": "soon",
            },
            {"requests": Reported(9, 1, None)},
        ),
    ],
)
def test_headers_of_both_vendors_are_understood(
    headers: dict[str, str], expected: dict[str, Reported]
) -> None:
    assert reported_limits(headers, NOW) == expected


# -- the shared state --------------------------------------------------------------------


async def test_gates_of_one_key_share_their_state_and_store_no_key(tmp_path: Path) -> None:
    folder = tmp_path / "pace"
    limiter = find_rate_limiter(str(folder), "https://host secret-key model")
    turn = await limiter.enter(400)
    await turn.record_answer(200, {"x-ratelimit-limit-requests": "5", **_REMAINING})
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert "secret" not in file.read_text() + file.name
    # Another process has its own limiter on the file.
    other, begun = RateLimiter(file), time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await other.enter(1)
    assert time.monotonic() - begun < 10
    assert json.loads(file.read_text())["requests"] == 1


_REMAINING = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s"}


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", '{"buckets": 3}', '{"buckets": {}, "x": 1}', "[]", "[" * 60_000),
        '{"buckets": {}, "recent": {}}',
        '{"buckets": {}, "seen": 9}',
        f'{{"buckets": {{}}, "blocked": 1{"0" * 400}}}',
        '{"buckets": {"tokens": {"rate": 0, "capacity": 1, "level": 0, "at": 0}}}',
    ],
)
async def test_a_state_that_a_crash_left_begins_again(tmp_path: Path, content: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(content)
    async with asyncio.timeout(10):
        turn = await RateLimiter(file).enter(1)
    await turn.record_answer(200, {})
    assert json.loads(file.read_text())["is_known"] is True


async def test_requests_are_sent_if_the_state_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    limiter = RateLimiter(tmp_path / "state.json")
    async with asyncio.timeout(10):
        for _ in range(3):
            await limiter.enter(1)


HOSTILE = (
    *(
        "nan",
        "-1",
        "0",
        "1",
        "1e308",
        "1e-320",
        "inf",
        "",
        "0.5",
        "9" * 400,
        "1000",
        "soon",
        "1..2s",
    ),
    *("2200-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "99999999999d"),
    *("1e308s", "\u0663s", "Sun, 09 Sep 99999999999999999999 01:46:40 GMT", "Mon, 1 Jan 1 1:1:1 1"),
)


def test_no_header_blocks_requests_for_more_than_ten_minutes(scale: Scale) -> None:
    draw = random.Random(SEED)
    names = [
        *(f"x-ratelimit-{one}-{of}" for one in _PARTS for of in ("requests", "tokens")),
        *(f"anthropic-ratelimit-requests-{one}" for one in _PARTS),
        "date",
    ]
    for _ in range(scale(200, 1000)):
        pace, now, sent = Pace(), NOW, NOW
        for _ in range(12):
            taken = pace.take(1e6, now)
            assert now - sent <= 600
            if not isinstance(taken, Ticket):
                assert 0 < taken <= 600
                now += taken
                continue
            sent = now
            headers = {name: draw.choice(HOSTILE) for name in names if draw.random() < 0.7}
            limits, refused = reported_limits(headers, now), draw.random() < 0.3
            pace.record_answer(taken, limits, now, refused=refused, retry_after=1e308)
            pace = Pace.from_dict(json.loads(json.dumps(pace.as_dict())))


_PARTS = ("limit", "remaining", "reset")


def test_a_fixed_window_of_an_hour_may_be_used_up_again_when_it_is_over() -> None:
    pace, now = Pace(), NOW
    first = pace.take(1, now)
    assert isinstance(first, Ticket)
    # As if one used request came back in an hour.
    used = reported_limits(_hourly(remaining=99, reset=3600), now)
    pace.record_answer(first, used, now, refused=False, retry_after=None)
    while isinstance(pace.take(1, now), Ticket):
        pass
    now += 3600
    later = pace.take(1, now)
    assert isinstance(later, Ticket)
    fresh = reported_limits(_hourly(remaining=99, reset=3600), now)
    pace.record_answer(later, fresh, now, refused=False, retry_after=None)
    assert sum(isinstance(pace.take(1, now), Ticket) for _ in range(99)) == 99


def _hourly(*, remaining: int, reset: int) -> dict[str, str]:
    numbers = {"limit": 100, "remaining": remaining, "reset": reset}
    return {f"x-ratelimit-{name}-requests": str(number) for name, number in numbers.items()}


async def test_a_lock_that_is_never_released_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limiter_file, "_LOCK_TRIES", 3)
    file = tmp_path / "state.json"
    with file.open("w") as held:
        assert try_lock(held.fileno())
        limiter = RateLimiter(file)
        await limiter.enter(1)
    # It is free by now, but was not for too long.
    await limiter.enter(1)
    assert file.read_text() == ""
