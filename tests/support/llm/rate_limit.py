"""A strict rate limit, a token bucket or fixed windows, with the headers that services send.

limit = RateLimit(20, window=2)
with ScriptedLLM.running([limit], repeat_last=True) as server: ...
assert limit.most_in_a_window() <= 20
"""

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
        requests: How many requests (or tokens) the full bucket holds; they come back evenly.
        window: Seconds in which an empty bucket fills.
        style: Whose headers the answers have; "retry-after" has only that, and "none" nothing.
        clock: Seconds since the epoch.
        left: How many are left at the start; None for all.
        counted: What the headers say is counted.
        closes: For fixed windows, in which nothing comes back before their end: seconds until the first one ends.

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
        left: float | None = None,
        counted: Literal["requests", "tokens"] = "requests",
        closes: float | None = None,
    ) -> None:
        self.limit = requests
        self.window = window
        self.arrived: list[float] = []
        self.refused = 0
        self._style: Style = style
        self._clock = clock
        self._level, self._at = float(requests if left is None else left), clock()
        self._counted = counted
        self._closes = None if closes is None else self._at + closes

    def __call__(self, request: Request | None = None) -> Reply | Status:
        is_taken, headers = self.take()
        return Reply("answer", headers=headers) if is_taken else Status(429, headers=headers)

    def take(self, amount: float = 1) -> tuple[bool, dict[str, str]]:
        """Count a request: whether there is room for it, and the headers of its answer."""
        now, rate = self._clock(), self.limit / self.window
        self.arrived.append(now)
        if self._closes is None:
            self._level = min(self.limit, self._level + (now - self._at) * rate)
        while self._closes is not None and self._closes <= now:
            self._level, self._closes = self.limit, self._closes + self.window
        self._at = now
        is_taken = self._level >= amount
        self._level -= amount if is_taken else 0
        self.refused += not is_taken
        until_full = (self.limit - self._level) / rate
        headers = self._headers(now, until_full if self._closes is None else self._closes - now)
        if not is_taken and self._style != "none":
            # In whole seconds, as services give it.
            after = (amount - self._level) / rate if self._closes is None else self._closes - now
            headers["retry-after"] = str(math.ceil(after))
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
                f"x-ratelimit-limit-{self._counted}": str(self.limit),
                f"x-ratelimit-remaining-{self._counted}": remaining,
                f"x-ratelimit-reset-{self._counted}": f"{math.ceil(until_full * 1000)}ms",
            }
        if self._style == "anthropic":
            full = datetime.fromtimestamp(math.ceil(now + until_full), UTC)
            prefix = f"anthropic-ratelimit-{self._counted.replace('tokens', 'input-tokens')}"
            return {
                f"{prefix}-limit": str(self.limit),
                f"{prefix}-remaining": remaining,
                f"{prefix}-reset": full.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        return {}
