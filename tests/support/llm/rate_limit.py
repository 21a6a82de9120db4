"""A strict rate limit: a token bucket as services have it, with the headers they send.

limit = RateLimit(20, window=2)
with ScriptedLLM.running([limit], repeat_last=True) as server: ...
assert limit.most_in_a_window() <= 20
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from tests.support.llm.http import Request
from tests.support.llm.script import Reply, Status

Style = Literal["anthropic", "openai", "retry-after", "none"]


class RateLimit:
    """Answers requests while its bucket has room, and refuses the others with 429.

    Args:
        requests: How many requests the full bucket holds; they come back evenly.
        window: Seconds in which an empty bucket fills.
        style: Whose headers the answers have; "retry-after" has only that, and "none" nothing.
        clock: Seconds since the epoch.

    Attributes:
        arrived: When each request came.
        refused: How many were refused.
    """

    def __init__(
        self,
        requests: int,
        *,
        window: float = 60.0,
        style: Style = "openai",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limit = requests
        self.window = window
        self.arrived: list[float] = []
        self.refused = 0
        self._style: Style = style
        self._clock = clock
        self._level, self._at = float(requests), clock()

    def __call__(self, request: Request | None = None) -> Reply | Status:
        is_taken, headers = self.take()
        return Reply("answer", headers=headers) if is_taken else Status(429, headers=headers)

    def take(self, amount: float = 1) -> tuple[bool, dict[str, str]]:
        """Count a request: whether there is room for it, and the headers of its answer."""
        now, rate = self._clock(), self.limit / self.window
        self.arrived.append(now)
        self._level = min(self.limit, self._level + (now - self._at) * rate)
        self._at = now
        is_taken = self._level >= amount
        self._level -= amount if is_taken else 0
        self.refused += not is_taken
        headers = self._headers(now, (self.limit - self._level) / rate)
        if not is_taken and self._style != "none":
            # In whole seconds, as services give it.
            headers["retry-after"] = str(math.ceil((amount - self._level) / rate))
        return is_taken, headers

    def most_in_a_window(self) -> int:
        """The most requests that came within any time of one window."""
        first, most = 0, 0
        for last, at in enumerate(self.arrived):
            while at - self.arrived[first] > self.window:
                first += 1
            most = max(most, last - first + 1)
        return most

    def _headers(self, now: float, until_full: float) -> dict[str, str]:
        remaining = str(int(self._level))
        if self._style == "openai":
            return {
                "x-ratelimit-limit-requests": str(self.limit),
                "x-ratelimit-remaining-requests": remaining,
                "x-ratelimit-reset-requests": f"{math.ceil(until_full * 1000)}ms",
            }
        if self._style == "anthropic":
            full = datetime.fromtimestamp(math.ceil(now + until_full), UTC)
            return {
                "anthropic-ratelimit-requests-limit": str(self.limit),
                "anthropic-ratelimit-requests-remaining": remaining,
                "anthropic-ratelimit-requests-reset": full.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        return {}
