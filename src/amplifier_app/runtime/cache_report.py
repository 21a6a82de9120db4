"""The tokens that a session's requests could have read from the provider's cache, and the cost of misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from amplifier_app.runtime.cost_report import Billed, missed_cost, model_prices, read_tokens
from amplifier_app.runtime.request_log import LoggedRequest
from amplifier_app.sessions.conversation import Step
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import ModelPrices, Tokens
from amplifier_support.usage import dollars

_MIN_CACHED = 1024
"""Input tokens of the shortest request that providers cache, if they do not report otherwise."""


class CachedRequest(NamedTuple):
    """A model request, and its use of the cache.

    Attributes:
        session: The name of its session in the report.
        request: The request.
        input: Its input tokens; None if they are unknown, as for a request that was not answered.
        same: Estimated input tokens of the beginning that it shares with the request before it.
        read: Those that the provider read from its cache; None if it does not report this.
        missed: Those that were in the cache and had to be sent again.
        cost: US dollars of the call; None if unknown.
        miss_cost: The part of it that reading the missed tokens from the cache would have saved.
    """

    session: str
    request: LoggedRequest
    input: int | None = None
    same: int | None = None
    read: int | None = None
    missed: int | None = None
    cost: Decimal | None = None
    miss_cost: Fraction | None = None

    @property
    def is_break(self) -> bool:
        """True if the request does not begin like the one before it."""
        difference = self.request.difference
        return difference is not None and difference.is_break


def cache_report(sessions: Sequence[tuple[Billed, Sequence[LoggedRequest]]]) -> list[CachedRequest]:
    """Report the requests of a session and its sub-sessions, each with its log."""
    listed = model_prices()
    return [row for billed, log in sessions for row in _rows(billed, log, listed)]


def _rows(
    billed: Billed, log: Sequence[LoggedRequest], listed: Mapping[str, ModelPrices]
) -> Iterator[CachedRequest]:
    steps = {step.number: step for step in billed.conversation if isinstance(step, Step)}
    answered = {request.step: request.number for request in log}
    earlier: dict[tuple[str, str | None], tuple[LoggedRequest, Tokens | None]] = {}
    for request in log:
        key = request.target
        step = steps.get(request.step) if answered[request.step] == request.number else None
        used = None if step is None else read_tokens(step)
        row = CachedRequest(billed.name, request)
        if step is not None and used is not None:
            row = _measure(row, step, used, earlier.get(key), listed)
        yield row
        earlier[key] = request, used


def _measure(
    row: CachedRequest,
    step: Step,
    used: Tokens,
    earlier: tuple[LoggedRequest, Tokens | None] | None,
    listed: Mapping[str, ModelPrices],
) -> CachedRequest:
    request, reports = row.request, _reports_cache(step.usage)
    per_byte = Fraction(used.prompt, max(request.size, 1))
    row = row._replace(
        input=used.prompt,
        same=None if request.same is None else round(request.same * per_byte),
        read=used.cache_read if reports else None,
        cost=dollars(step.usage.get("cost_usd")),
    )
    if not reports:
        return row
    missed = Fraction(0)
    if earlier is not None:
        was_cached = _count_cached(*earlier, per_byte)
        # Estimates differ a little from what the provider counts.
        if row.is_break or used.cache_read < was_cached / 2:
            missed = max(min(was_cached, Fraction(used.prompt)) - used.cache_read, Fraction(0))
    return row._replace(missed=round(missed), miss_cost=missed_cost(step, missed, listed))


def _reports_cache(usage: Mapping[str, Any]) -> bool:
    return any(isinstance(usage.get(f"cache_{way}_tokens"), int) for way in ("read", "write"))


def _count_cached(request: LoggedRequest, used: Tokens | None, per_byte: Fraction) -> Fraction:
    """The tokens of a request that are in the cache after it; estimated if the provider counts none."""
    if used is None:
        return Fraction(0)
    if used.cache_write:
        return Fraction(used.cache_read + used.cache_write)
    if used.cache_read or used.prompt >= _MIN_CACHED:
        return request.stable * per_byte
    return Fraction(0)
