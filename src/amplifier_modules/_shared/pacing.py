"""The rate limits of a key, shared by all processes of this machine that use it: when may the next request be sent?

The state is a small file, read and written under a lock that ends with its holder. A state that a crash left
incomplete is replaced. If the file cannot be used, requests are not slowed.

A service reports its limits in the headers of an answer:

    anthropic-ratelimit-requests-limit, -remaining, -reset     and the same for input-tokens or tokens
    x-ratelimit-limit-requests, -remaining-requests, -reset-requests     and the same for tokens

A reset is a time (`2026-01-01T00:00:05Z`), a duration (`1m2.5s`, `120ms`) or a number of seconds.

Each limit that a service reports is kept as a copy of the service's own bucket: what is left of it may be sent at
once, then as much as comes back. The copy never holds more than the service has:

* The first answer gives its level. Later requests are subtracted when they are sent, so that they are missing here
  before they are missing there.
* Each answer bounds the level from above, because others may use the key. For tokens it also bounds it from below,
  because those of a request are only estimated; how far the estimates are off is learned from the answers.
* A limit comes back evenly (a token bucket, as both vendors have) or all at once (a fixed window, as some gateways
  have). Both report the seconds until the limit is whole again. In a bucket these are in proportion to the used part,
  in a fixed window they are not. The first answer counts as a bucket if the proportion is that of the usual window of
  a minute; every further tenth of the limit that is used decides again. Nothing comes back to a fixed window before
  its end; a bucket is whole again at that time, too, so that a mistake in this direction refuses no request.

Until any answer has come, the number of requests doubles every 2 s up to one more each second: a refusal comes at
once, so that an answer that takes long is none. If a service lets no request through for ten minutes, what was
reported is forgotten, and the next request shows the limits. A service that reports nothing is not slowed until it
refuses a request for its rate (429); from then on the rate falls to a half at each refusal and grows with each answer
(AIMD).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from amplifier_modules._shared.http.client import enter_at_once
from amplifier_modules._shared.http.errors import parse_http_date, retry_after
from amplifier_support.files import make_private_folder, open_private, try_lock
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import PACE, Enter, Turn
from amplifier_support.text import lazy_pattern

logger = logging.getLogger(__name__)


DEFAULT_WINDOW = 60.0

_DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "requests": ("anthropic-ratelimit-requests-{}", "x-ratelimit-{}-requests"),
    "tokens": (
        "anthropic-ratelimit-input-tokens-{}",
        "anthropic-ratelimit-tokens-{}",
        "x-ratelimit-{}-tokens",
    ),
}
_DURATION = lazy_pattern(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)

_SHORTEST_WINDOW, _MAX_WINDOW = 0.01, 86400.0
_SMALLEST, _LARGEST = 1.0, 1e12
"""Limits that are believed."""

_TIME_PRECISION = 1.0
"""Error of times in whole seconds, in seconds."""


class Reported(NamedTuple):
    """The remainder of a limit.

    Attributes:
        limit: The size of the limit.
        remaining: How much is left.
        window: Seconds in which the whole limit comes back if it comes back evenly, inferred from the reset; None if
            that cannot be inferred.
        error: The error of `window`, as a share of it.
    """

    limit: float
    remaining: float
    window: float | None
    error: float = 0.0

    @property
    def used(self) -> float:
        """The used part of the limit."""
        return max(0.0, self.limit - self.remaining)


def reported_limits(headers: Mapping[str, str], now: float) -> dict[str, Reported]:
    """The limits of `requests` and `tokens` that an answer reports.

    Args:
        headers: The headers, looked up in lower case.
        now: Seconds since the epoch.
    """
    limits: dict[str, Reported] = {}
    for dimension, names in _DIMENSIONS.items():
        for name in names:
            limit, remaining = (_number(headers.get(name.format(field))) for field in _COUNTS)
            if limit is None or remaining is None:
                continue
            if _SMALLEST <= limit <= _LARGEST:
                window = _window(limit, remaining, headers.get(name.format("reset")), headers, now)
                limits[dimension] = Reported(limit, remaining, *window)
                break
    return limits


_COUNTS = ("limit", "remaining")


def _window(
    limit: float, remaining: float, reset: str | None, headers: Mapping[str, str], now: float
) -> tuple[float | None, float]:
    """Seconds in which a limit comes back, if the used part comes back evenly until the reset, and their error."""
    used = limit - remaining
    if reset is None or used <= 0:
        return None, 0.0
    left, error = _seconds(reset), 0.0
    if left is None:
        is_exact = "." in reset
        left = _seconds_until(reset, None if is_exact else headers.get("date"), now)
        error = 0.0 if is_exact else _TIME_PRECISION
    if left is None or left <= 0:
        return None, 0.0
    return max(_SHORTEST_WINDOW, min(left * limit / used, _MAX_WINDOW)), error / left


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _seconds(text: str) -> float | None:
    number = _number(text)
    if number is not None or not text:
        return number
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    values = [_number(group) or 0.0 for group in match.groups()]
    return sum(value * unit for value, unit in zip(values, _UNITS, strict=True))


def _seconds_until(text: str, date: str | None, now: float) -> float | None:
    """The time until a moment by the clock of the service, if the answer has it."""
    try:
        moment = datetime.fromisoformat(text)
        ends = moment.timestamp()
    except (ValueError, OverflowError):
        return None
    seen = now if date is None else parse_http_date(date)
    return None if moment.tzinfo is None or seen is None else ends - seen


_USUAL = 0.05
"""The share by which the window of the first answer may differ from the usual one."""

_JUDGED = 1.1
"""The growth of the used part after which the window is compared again."""

_SAME = 0.95
"""The share of the last window that the next one of a bucket has at least."""

_SAMPLE = 0.05
"""The share of a limit over which estimated tokens are compared with what was used."""

_RESERVE, _MAX_RESERVE, _RESERVE_DECAY = 0.02, 0.5, 0.998
"""The share of a limit that is left for other users of the key: at first, at most, and its decay at each answer."""

_UNSEEN = 0.1
"""The share of a limit that is sent without an answer until then."""

_MAX_SCALE = 32.0
_COARSE = 0.25
"""If its error is a larger share of a window, nothing is inferred from it."""

_BLOCK_RESERVE, _BLOCK_SCALE = 0.1, 1.5
"""The addition to the reserve and the factor of `scale` after a refusal."""

_SAMPLE_SECONDS = 10.0
_EXCESS_SECONDS = 5.0
"""Seconds for which all answers must report more than expected; the requests before them may arrive later."""

_MAX_GAP = 600.0
"""Seconds without a request after which reported limits are no longer believed."""

_PROBE_SECONDS = 2.0
"""Seconds for which a request is alone before any answer was seen, and after which the number doubles."""

_PROBES = 8.0
_PROBE_POLL = 0.05
_MAX_BLOCK = 120.0
_BLOCK = 1.0
"""Seconds to wait after a refusal that asks for no time."""

_LOWEST_RATE = 0.05
_MEASURABLE_RATE = 4.0
"""Requests a second."""

_SHORTEST_WAIT = 0.001
_GROWTH = 0.1
_FORGET = 8.0
"""The rate is free again when it has grown to this many times what it was cut to."""

_RATE_SECONDS = 10.0
"""Over how long the rate of requests is measured."""


@dataclass(eq=False, repr=False)  # each method is compiled at every start
class Bucket:
    """A limit.

    Attributes:
        rate: What comes back in a second, if it comes back evenly.
        capacity: The most it holds.
        level: What it held at the time `at`; below 0, it is owed.
        at: Seconds since the epoch.
        window: Seconds in which the whole limit comes back; 0 if that is not known.
        is_even: 1 if it comes back evenly, 0 if all of it comes back at the end of a fixed window.
        resets: When the fixed window ends; 0 if that is not known yet.
        opened: When the fixed window began, if a window before it has ended.
        used: The used part in the answer that decided on `is_even`; 0 before.
        measured: The window in that answer.
        reserve: The share that is left for other users of the key; more after a refusal.
        scale: Units of the limit that one estimated unit uses. Only tokens are estimated.
        is_measured: 1 if that was measured for a while.
        sampled: Units let through until the last answer that it was measured with.
        sampled_left: The part of the limit that was left then.
        sampled_at: When that was; 0 before the first answer.
        excess: The least that answers have reported above the level lately.
        excess_since: Since when.
    """

    rate: float
    capacity: float
    level: float
    at: float
    window: float = 0.0
    is_even: float = 1.0
    resets: float = 0.0
    opened: float = 0.0
    used: float = 0.0
    measured: float = 0.0
    reserve: float = _RESERVE
    scale: float = 1.0
    is_measured: float = 0.0
    sampled: float = 0.0
    sampled_left: float = 0.0
    sampled_at: float = 0.0
    excess: float = 0.0
    excess_since: float = 0.0

    def fill(self, now: float) -> None:
        """Add what has come back until now."""
        if now < self.at:
            if self.at - now > _MAX_BLOCK:
                self.at, self.opened = now, min(self.opened, now)  # The clock was set back.
            return
        if self.is_even:
            self.level = min(self.capacity, self.level + self.rate * (now - self.at))
        elif now >= self._end:
            # The next request shows what is left.
            self.level, self.opened, self.resets = max(self.level, 1.0), now, 0.0
        self.at = now

    def wait(self, need: float) -> float:
        """Seconds until there is room; a need above the capacity waits for a full bucket."""
        missing = min(need, self.capacity) - self.level
        if self.is_even or missing <= 0:
            return max(0.0, missing / self.rate)
        return max(0.0, self._end - self.at)

    def note_window(self, limit: Reported, now: float) -> None:
        """Decide whether the limit comes back evenly, and when or how fast."""
        if limit.window is None or not limit.used:
            return
        # What is left is a whole number.
        usual, error = DEFAULT_WINDOW, limit.error + 1 / limit.used
        is_exact = error <= 1 - _SAME
        if not self.used:
            doubt = usual * (_USUAL + 1 / limit.used) + limit.window * limit.error
            self.is_even = float(abs(limit.window - usual) <= doubt)
        elif limit.used >= self.used * _JUDGED and is_exact:
            self.is_even = float(limit.window >= self.measured * _SAME)
        if is_exact and not self.used <= limit.used < self.used * _JUDGED:
            self.used, self.measured = limit.used, limit.window
        until_reset = limit.window * limit.used / limit.limit
        if not self.is_even:
            resets = now + until_reset * (1 + limit.error)
            self.resets, self.window = min(self.resets or resets, resets), 0.0
        elif error <= _COARSE:
            # Times in whole seconds make it longer than it is. Seen right after a pause, it appears shorter.
            window = min(limit.window, usual) if until_reset <= usual else limit.window
            self.window = max(self.window, window)

    def measure(self, sent: float, left: float, ticket_at: float, now: float) -> None:
        """Compare what was let through until now with the least that the service has counted of it."""
        passed, age = sent - self.sampled, now - self.sampled_at
        if self.sampled_at and passed >= _SAMPLE * self.capacity:
            back = self.rate * max(0.0, ticket_at - self.sampled_at) if self.is_even else 0.0
            scale = min((self.sampled_left + back - left) / passed, _MAX_SCALE)
            self.scale = max(self.scale, scale)
            if age > _SAMPLE_SECONDS:
                self.scale, self.is_measured = max(1.0, (self.scale + scale) / 2), 1.0
        if age > _SAMPLE_SECONDS:
            self.sampled, self.sampled_left, self.sampled_at = sent, left, now

    def note_level(self, least: float, most: float, now: float) -> None:
        """Keep the level between what an answer says that it has at least and at most."""
        self.level = min(self.level, most)
        self.excess = min(self.excess, least - self.level)
        if now - self.excess_since > _EXCESS_SECONDS:
            if self.excess_since:
                self.level += max(0.0, self.excess)
            self.excess, self.excess_since = least - self.level, now

    @property
    def _end(self) -> float:
        return self.resets or self.opened + DEFAULT_WINDOW


class Ticket(NamedTuple):
    """A request that was let through.

    Attributes:
        at: When, in seconds since the epoch.
        requests: How many were let through until then, with this one.
        tokens: How many tokens those had, as estimated.
    """

    at: float
    requests: int
    tokens: float


@dataclass(eq=False, repr=False)
class Pace:
    """The known limits of a key.

    Attributes:
        buckets: The service's limits by name, `requests` and `tokens`, or `refused` for an inferred one.
        requests: How many requests were let through.
        tokens: How many tokens those had, as estimated.
        seen: The number of the newest request whose answer was seen.
        seen_tokens: The tokens until then.
        blocked: No request before this time.
        probed: When the first request was sent; 0 once an answer is known.
        probes: Requests sent since, without an answer.
        is_known: Whether an answer was seen.
        base: The rate after the last refusal, if it is inferred.
        cut: Refusals until this time are of the same cause.
        recent: How many requests were sent lately, weighted by age.
        recent_at: When that was counted.
        recent_since: When that began.
        sent: When the last request was let through.
    """

    buckets: dict[str, Bucket] = field(default_factory=dict[str, Bucket])
    requests: int = 0
    tokens: float = 0.0
    seen: int = 0
    seen_tokens: float = 0.0
    blocked: float = 0.0
    probed: float = 0.0
    probes: int = 0
    is_known: bool = False
    base: float = 0.0
    cut: float = 0.0
    recent: float = 0.0
    recent_at: float = 0.0
    recent_since: float = 0.0
    sent: float = 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pace:
        """Restore a value of `as_dict`.

        Raises:
            TypeError, KeyError, ValueError, ArithmeticError, AttributeError: It is something else.
        """
        buckets = {name: Bucket(**value) for name, value in data["buckets"].items()}
        fields = {name: value for name, value in data.items() if name != "buckets"}
        numbers = [
            *fields.values(),
            *(n for bucket in buckets.values() for n in asdict(bucket).values()),
        ]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("not a number")
        pace = cls(buckets, **fields)
        if pace.seen > pace.requests or any(bucket.rate <= 0 for bucket in buckets.values()):
            raise ValueError("not the state of a pace")
        return pace

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)

    def take(self, tokens: float, now: float) -> Ticket | float:
        """Let a request through, or return the seconds until it may be asked for again.

        Args:
            tokens: The tokens of the request, as estimated.
            now: Seconds since the epoch.
        """
        wait = self._wait(tokens, now)
        if wait > 0:
            return max(wait, _SHORTEST_WAIT)
        for name, bucket in self.buckets.items():
            bucket.level -= _need(name, bucket, tokens)
        self.sent = now
        self.requests += 1
        self.tokens += tokens
        self._count(now)
        if not self.is_known:
            self.probed, self.probes = self.probed or now, self.probes + 1
        return Ticket(now, self.requests, self.tokens)

    def record_answer(
        self,
        ticket: Ticket,
        limits: Mapping[str, Reported],
        now: float,
        *,
        refused: bool,
        retry_after: float | None,
    ) -> None:
        """Take over what an answer says.

        Args:
            ticket: That of its request.
            limits: What its headers report.
            now: Seconds since the epoch.
            refused: Whether it refuses the request for its rate.
            retry_after: Seconds that it asks to wait.
        """
        was_known, self.is_known, self.probed, self.probes = self.is_known, True, 0.0, 0
        if limits:
            self.buckets.pop("refused", None)
        # An older answer says less than what is known by now; its state may have been lost since.
        if self.seen <= ticket.requests <= self.requests:
            self.seen, self.seen_tokens = ticket.requests, ticket.tokens
            for name, limit in limits.items():
                self._correct(name, limit, ticket, now)
        if "tokens" in limits and "tokens" in self.buckets and not refused:
            left = limits["tokens"].remaining
            self.buckets["tokens"].measure(self.tokens, left, ticket.at, now)
        if refused:
            self._slow_down(retry_after, now, is_reported=bool(limits), is_probe=not was_known)
        elif not limits:
            self._grow()

    def record_failure(self) -> None:
        """Note that a request had no answer that says anything about limits."""
        self.probed, self.probes = 0.0, 0

    def _wait(self, tokens: float, now: float) -> float:
        # No service blocks for longer; the clock was set back.
        self.blocked = min(self.blocked, now + _MAX_BLOCK)
        self.cut = min(self.cut, now + _MAX_BLOCK)
        if now < self.blocked:
            return self.blocked - now
        if not self.is_known and not 0 <= now - self.sent <= _RATE_SECONDS:
            # The processes that sent the others may have been killed.
            self.probed, self.probes = 0.0, 0
        if not self.is_known and self.probes >= self._allowed_probes(now):
            return _PROBE_POLL
        self.sent = min(self.sent, now)
        wait = 0.0
        for name, bucket in self.buckets.items():
            bucket.fill(now)
            wait = max(wait, bucket.wait(_need(name, bucket, tokens)))
            if name == "tokens" and not bucket.is_measured and now < self.sent + _SAMPLE_SECONDS:
                is_much = self.tokens - self.seen_tokens >= _UNSEEN * bucket.capacity
                wait = max(wait, is_much * _PROBE_POLL)
        left = self.sent + _MAX_GAP - now
        if wait > 0 and left <= 0:
            self.buckets.clear()
            self.is_known = False
            return 0.0
        return min(wait, max(0.0, left))

    def _allowed_probes(self, now: float) -> float:
        age = max(0.0, now - self.probed)
        return min(2.0 ** min(age // _PROBE_SECONDS, 60.0), _PROBES + age)

    def _correct(self, name: str, limit: Reported, ticket: Ticket, now: float) -> None:
        bucket = self.buckets.get(name)
        if bucket is None:
            bucket = self.buckets[name] = Bucket(1.0, limit.limit, -math.inf, now)
        if ticket.at < bucket.opened:
            return  # It is about the window before.
        bucket.fill(now)
        is_unknown = bucket.level == -math.inf or not (bucket.is_even or bucket.resets)
        bucket.note_window(limit, now)
        bucket.rate = limit.limit / (bucket.window or DEFAULT_WINDOW)
        bucket.capacity = max(1.0, limit.limit)
        later = self.requests - ticket.requests
        if name == "tokens":
            later = _need(name, bucket, self.tokens - ticket.tokens)
        bucket.reserve = max(_RESERVE, bucket.reserve * _RESERVE_DECAY)
        reserve = bucket.reserve * limit.limit if bucket.is_even else 0.0
        least = limit.remaining - reserve - max(0.0, later)
        back = bucket.rate * max(0.0, now - ticket.at) if bucket.is_even else 0.0
        if is_unknown:
            bucket.level = least
        bucket.note_level(least - back, min(limit.limit - max(0.0, later), least + back), now)

    def _slow_down(
        self, retry_after: float | None, now: float, *, is_reported: bool, is_probe: bool
    ) -> None:
        wait = _BLOCK if retry_after is None else retry_after
        self.blocked = max(self.blocked, now + min(wait, _MAX_BLOCK))
        is_first = now >= self.cut  # of this cause
        if not is_reported and is_first:
            inferred = self.buckets.get("refused")
            # A few requests are no measure.
            rate = max(_MEASURABLE_RATE, self._measured_rate(now))
            if inferred is not None:
                rate = min(rate, inferred.rate)
            self.base = max(_LOWEST_RATE, rate / 2)
            self.buckets["refused"] = Bucket(self.base, max(1.0, self.base), 0.0, now)
            self.recent, self.recent_since = 0.0, self.blocked
        for bucket in self.buckets.values():
            bucket.fill(now)
            # Requests that wait until then are not all sent at once.
            back = bucket.rate * (self.blocked - now) if bucket.is_even else 0.0
            bucket.level, bucket.at = min(bucket.level + back, 0.0), self.blocked
            # What is refused uses nothing.
            bucket.sampled, bucket.sampled_at = self.tokens, 0.0
            if is_reported and is_first and not is_probe:
                bucket.reserve = min(bucket.reserve + _BLOCK_RESERVE, _MAX_RESERVE)
                bucket.scale = min(bucket.scale * _BLOCK_SCALE, _MAX_SCALE)
        self.cut = self.blocked if is_first else self.cut

    def _grow(self) -> None:
        inferred = self.buckets.get("refused")
        if inferred is None:
            return
        inferred.rate += self.base * _GROWTH
        inferred.capacity = max(1.0, inferred.rate)
        if inferred.rate > self.base * _FORGET:
            del self.buckets["refused"]

    def _count(self, now: float) -> None:
        age = max(0.0, now - self.recent_at)
        if age > 3 * _RATE_SECONDS:
            self.recent, self.recent_since = 0.0, now
        self.recent = self.recent * math.exp(-age / _RATE_SECONDS) + 1
        self.recent_at = now

    def _measured_rate(self, now: float) -> float:
        """Requests a second lately, or since they began if that was a moment ago."""
        time = max(1.0, now - self.recent_since)
        return self.recent / (_RATE_SECONDS * (1 - math.exp(-time / _RATE_SECONDS)))


def _need(name: str, bucket: Bucket, tokens: float) -> float:
    """Return the units that a request with this many estimated tokens takes from a bucket."""
    return tokens * bucket.scale if name == "tokens" else 1


_OK, _TOO_MANY = 200, 429
_LOCK_TRIES, _LOCK_SECONDS = 1000, 0.002
_STUCK_SECONDS = 30.0
"""Seconds for which a state is not used whose lock was not released, as by a process that is
stopped.
"""

_MAX_SLEEP = 1.0
_SPREAD = 0.05
_MAX_STATE_BYTES = 64 * 1024
_BYTES_PER_TOKEN = 4

_T = TypeVar("_T")
_limiters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RateLimiter]] = (
    weakref.WeakKeyDictionary()
)


def find_rate_limiter(folder: str, account: str) -> RateLimiter:
    """The limiter of an account and a model.

    Args:
        folder: Where the states are.
        account: What identifies both; only a hash of it is stored.
    """
    digest = hashlib.sha256(account.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    limiters = _limiters.setdefault(asyncio.get_running_loop(), {})
    path = os.path.join(folder, f"{digest}.json")
    return limiters.setdefault(path, RateLimiter(Path(path)))


def find_pacing(coordinator: Any) -> Enter:
    """Return the function by which a provider's endpoint waits: the session's capability, otherwise
    none.
    """

    async def enter(account: str, size: int) -> Turn:
        paced = None if coordinator is None else PACE.of(coordinator)
        return await (paced or enter_at_once)(account, size)

    return enter


def pace_in(folder: str) -> Enter:
    """Return the function that shares the pace of each key with all processes that use a folder."""

    async def enter(account: str, size: int) -> Turn:
        return await find_rate_limiter(folder, account).enter(size)

    return enter


class RateLimiter:
    """Delays requests to the pace of their key.

    Args:
        path: The file of the state.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._unused_until = 0.0

    async def enter(self, size: int) -> Turn:
        """Wait until a request may be sent; requests of this process are sent in order.

        Args:
            size: Its length in bytes.
        """
        tokens = size / _BYTES_PER_TOKEN
        async with self._turn:
            while True:
                taken = await self.change(lambda pace: pace.take(tokens, time.time()))
                if taken is None:
                    return Turn()
                if isinstance(taken, Ticket):
                    return _PacedTurn(self, taken)
                # Spreads the processes that wait for the same moment.
                spread = 1 + random.random() * _SPREAD
                await asyncio.sleep(min(taken * spread, _MAX_SLEEP))

    async def change(self, change: Callable[[Pace], _T]) -> _T | None:
        """Change the state and return the result of `change`; None if the state or its lock is unavailable."""
        if time.monotonic() < self._unused_until:
            return None
        try:
            descriptor = self._open()
            try:
                for _ in range(_LOCK_TRIES):
                    if try_lock(descriptor):
                        return _apply_change(descriptor, change)
                    await asyncio.sleep(_LOCK_SECONDS)
                self._unused_until = time.monotonic() + _STUCK_SECONDS
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.debug("requests are not paced: %s: %s", self._path, error)
        return None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT
        try:
            return open_private(self._path, flags)
        except FileNotFoundError:
            make_private_folder(self._path.parent)
            return open_private(self._path, flags)


class _PacedTurn(Turn):
    """Reports the answer of one request."""

    def __init__(self, limiter: RateLimiter, ticket: Ticket) -> None:
        self._limiter = limiter
        self._ticket = ticket

    async def record_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Apply the limits in the head of the answer; header names are looked up in lower case."""
        now = time.time()
        limits = reported_limits(headers, now)
        if not limits and status not in (_OK, _TOO_MANY):
            await self.record_failure()
            return
        refused, pause = status == _TOO_MANY, retry_after(headers)
        await self._limiter.change(
            lambda pace: pace.record_answer(
                self._ticket, limits, now, refused=refused, retry_after=pause
            )
        )

    async def record_failure(self) -> None:
        """Note that the request has failed before its answer began."""
        await self._limiter.change(Pace.record_failure)


def _apply_change(descriptor: int, change: Callable[[Pace], _T]) -> _T:
    text = os.read(descriptor, _MAX_STATE_BYTES)
    try:
        pace = Pace.from_dict(json.loads(text))
    # Empty at first, or left by a crash.
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        pace = Pace()
    result = change(pace)
    data = json.dumps(pace.as_dict()).encode()
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)
    os.ftruncate(descriptor, len(data))
    return result
