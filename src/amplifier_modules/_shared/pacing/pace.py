"""When the next request may be sent: what is known about a key's limits, as pure arithmetic.

Each limit is a bucket that fills evenly. It holds a tenth of the limit only, so that in any window of time
at most a tenth more than the limit is sent; limits of an hour or a day may be used up at once. What the service
reports about its own bucket corrects it: others may use the key, and tokens are only estimated. If it lets no
request through for ten minutes, what was reported is forgotten, and the next request shows the limits. A service that reports nothing is not slowed until it
refuses a request for its rate (429); from then on the rate falls to a half at each refusal and grows with
each answer (AIMD).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from amplifier_modules._shared.pacing.headers import DEFAULT_WINDOW, Reported

_BURST = 0.1
"""The share of a limit that may be sent at once."""

_SHORT_WINDOW = 2 * DEFAULT_WINDOW
"""Seconds up to which the share applies."""

_LONGEST_GAP = 600.0
"""Seconds without a request after which reported limits are no longer believed."""

_PROBE_SECONDS = 2.0
"""How long a request is alone before any answer was seen: the first one shows the limits."""

_PROBE_POLL = 0.05
_LONGEST_BLOCK = 120.0
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


@dataclass
class Bucket:
    """A limit that fills evenly.

    Attributes:
        rate: What comes back in a second.
        capacity: The most it holds.
        level: What it held at the time `at`; below 0, it is owed.
        at: Seconds since the epoch.
        window: Seconds in which the service's whole limit comes back; 0 if that is not known.
    """

    rate: float
    capacity: float
    level: float
    at: float
    window: float = 0.0

    def fill(self, now: float) -> None:
        """Add what has come back until now."""
        if now >= self.at:
            self.level = min(self.capacity, self.level + self.rate * (now - self.at))
            self.at = now
        elif self.at - now > _LONGEST_BLOCK:
            self.at = now  # The clock was set back.

    def wait(self, need: float) -> float:
        """Seconds until there is room; a need above the capacity waits for a full bucket."""
        return max(0.0, (min(need, self.capacity) - self.level) / self.rate)


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


@dataclass
class Pace:
    """What is known about the limits of a key.

    Attributes:
        buckets: The service's limits by name, `requests` and `tokens`, or `refused` for an inferred one.
        requests: How many requests were let through.
        tokens: How many tokens those had, as estimated.
        seen: The number of the newest request whose answer was seen.
        blocked: No request before this time.
        probed: When the first request was sent; 0 once its answer is known.
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
    blocked: float = 0.0
    probed: float = 0.0
    is_known: bool = False
    base: float = 0.0
    cut: float = 0.0
    recent: float = 0.0
    recent_at: float = 0.0
    recent_since: float = 0.0
    sent: float = 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pace:
        """What `as_dict` returned.

        Raises:
            TypeError, KeyError, ValueError, ArithmeticError, AttributeError: It is something else.
        """
        buckets = {name: Bucket(**one) for name, one in data["buckets"].items()}
        fields = {name: one for name, one in data.items() if name != "buckets"}
        numbers = [*fields.values(), *(n for one in buckets.values() for n in asdict(one).values())]
        if not all(math.isfinite(one) for one in numbers):
            raise ValueError("not a number")
        pace = cls(buckets, **fields)
        if pace.seen > pace.requests or any(one.rate <= 0 for one in buckets.values()):
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
            bucket.level -= tokens if name == "tokens" else 1
        self.sent = now
        self.requests += 1
        self.tokens += tokens
        self._count(now)
        if not self.is_known:
            self.probed = now
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
        self.is_known, self.probed = True, 0.0
        if limits:
            self.buckets.pop("refused", None)
        # An older answer says less than what is known by now; its state may have been lost since.
        if self.seen <= ticket.requests <= self.requests:
            self.seen = ticket.requests
            for name, limit in limits.items():
                self._correct(name, limit, ticket, now)
        if refused:
            self._slow_down(retry_after, now, is_reported=bool(limits))
        elif not limits:
            self._grow()

    def record_failure(self) -> None:
        """Note that a request had no answer that says anything about limits."""
        self.probed = 0.0

    def _wait(self, tokens: float, now: float) -> float:
        # No service blocks for longer; the clock was set back.
        self.blocked = min(self.blocked, now + _LONGEST_BLOCK)
        self.cut = min(self.cut, now + _LONGEST_BLOCK)
        if now < self.blocked:
            return self.blocked - now
        if not self.is_known and 0 <= now - self.probed < _PROBE_SECONDS:
            return _PROBE_POLL
        self.sent = min(self.sent, now)
        wait = 0.0
        for name, bucket in self.buckets.items():
            bucket.fill(now)
            wait = max(wait, bucket.wait(tokens if name == "tokens" else 1))
        left = self.sent + _LONGEST_GAP - now
        if wait > 0 and left <= 0:
            self.buckets.clear()
            self.is_known = False
            return 0.0
        return min(wait, max(0.0, left))

    def _correct(self, name: str, limit: Reported, ticket: Ticket, now: float) -> None:
        bucket = self.buckets.get(name)
        if bucket is None:
            bucket = self.buckets[name] = Bucket(1.0, limit.limit, -math.inf, now)
        # Seen right after a pause, the window appears shorter than it is, never longer.
        bucket.window = max(bucket.window, limit.window or 0.0)
        window = bucket.window or DEFAULT_WINDOW
        bucket.rate = limit.limit / window
        capacity = limit.limit * _BURST if window <= _SHORT_WINDOW else limit.limit
        bucket.capacity = max(1.0, capacity)
        bucket.fill(now)
        later = (self.requests - ticket.requests, self.tokens - ticket.tokens)
        since = max(0.0, later[name == "tokens"])
        left = min(limit.limit, limit.remaining + bucket.rate * max(0.0, now - ticket.at)) - since
        if window > _SHORT_WINDOW:
            # All of it may come back at once.
            bucket.level = left
        elif name == "tokens" or bucket.level == -math.inf:
            # Tokens are estimated. The service's bucket is larger; what is missing there is missing here.
            bucket.level = max(bucket.level, bucket.capacity - (limit.limit - left))
        bucket.level = min(left, bucket.level)

    def _slow_down(self, retry_after: float | None, now: float, *, is_reported: bool) -> None:
        wait = _BLOCK if retry_after is None else retry_after
        self.blocked = max(self.blocked, now + min(wait, _LONGEST_BLOCK))
        if not is_reported and now >= self.cut:
            inferred = self.buckets.get("refused")
            # A few requests are no measure.
            rate = max(_MEASURABLE_RATE, self._measured_rate(now))
            if inferred is not None:
                rate = min(rate, inferred.rate)
            self.base = max(_LOWEST_RATE, rate / 2)
            self.buckets["refused"] = Bucket(self.base, max(1.0, self.base), 0.0, now)
            self.cut = self.blocked
            self.recent, self.recent_since = 0.0, self.blocked
        for bucket in self.buckets.values():
            bucket.fill(now)
            # Requests that wait until then are not all sent at once.
            bucket.level, bucket.at = min(bucket.level, 0.0), self.blocked

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
