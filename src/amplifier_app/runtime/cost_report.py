"""The cost of the parts of a conversation, and of what its requests could have read from the provider's cache.

Every model call is billed for the whole context it is sent. Its cost is therefore divided among what put
the context there: the output belongs to the answer, and the input to the system prompt, the prompts,
earlier answers and tool results, in proportion to their lengths. What came from the cache is the
beginning of the context and is charged at its lower price. A long tool result costs again in every
later call, less the cache.

Totals are exact; the rounded parts add up to the rounded total.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from amplifier_app.base.errors import UsageError
from amplifier_app.base.price_files import price_lists
from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.request_log import LoggedRequest
from amplifier_app.sessions.conversation import Conversation, Prompt, Step
from amplifier_app.sessions.summary import cost_in, has_unpriced_calls
from amplifier_app.sessions.tool_calls import as_text, text_in
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import ModelPrices, Prices, Tokens, merge_lists
from amplifier_support.text import did_you_mean
from amplifier_support.usage import dollars, token_counts


def model_prices() -> dict[str, ModelPrices]:
    """The prices of all listed models, by model id.

    Raises:
        ConfigError: The table of prices that the user has fetched is damaged, or cannot be read.
    """
    listed = (each for lists in price_lists().values() for each in merge_lists(lists).items())
    return {
        model: entry.prices.filled()
        for model, entry in listed
        if entry.prices.usual.input is not None and entry.prices.usual.output is not None
    }


def find_prices(model: str) -> ModelPrices:
    """The prices of a model.

    Raises:
        UsageError: No list has it.
    """
    listed = model_prices()
    if model not in listed:
        hint = did_you_mean(model, set(listed)) or f"Known models: {', '.join(sorted(listed))}"
        raise UsageError(f"no price list has the model {model!r}", hint=hint)
    return listed[model]


By = Literal["agent", "tool", "step", "message", "model"]

MICRO = 1_000_000
"""Amounts are rounded to millionths of a dollar."""

_BYTES_PER_TOKEN = 4
_USUAL = Prices(*map(Decimal, ("1", "5", "0.1", "1.25")))
"""The usual proportions between prices, for a model without a price list."""

_DEFINITIONS = "tool definitions and overhead"
_OTHER = "other model calls, such as summaries"
_UNRECORDED = "model calls without usage in their messages"


class Source(NamedTuple):
    """A part of a conversation that costs are charged to; its name for each kind of report."""

    tool: str
    message: str


class Share(NamedTuple):
    """The cost of a part of a session.

    Attributes:
        name: The part.
        micro_dollars: Millionths of a US dollar; None if a price is unknown.
        tokens: Billed tokens, input and output.
    """

    name: str
    micro_dollars: int | None
    tokens: int


class Report(NamedTuple):
    """The cost of a session by its parts, the most expensive first; the parts add up to the total."""

    total: int | None
    tokens: int
    shares: list[Share]


class Billed(NamedTuple):
    """A session whose cost is reported, and its name in the report."""

    name: str
    conversation: Conversation
    metadata: Mapping[str, Any]


def cost_report(
    lead: Billed, agents: Sequence[Billed], by: By, what_if: ModelPrices | None = None
) -> Report:
    """Report the cost of a session, its sub-agents included.

    Args:
        lead: The session.
        agents: Its sub-sessions, also those further down.
        by: The kind of parts.
        what_if: The prices of another model, to be charged for the same tokens.
    """
    listed = model_prices()
    costs: dict[str, float] = {}
    tokens: dict[str, float] = {}
    total, total_tokens = Fraction(0), 0
    # The session counts model calls without a price that leave no message.
    is_known = what_if is not None or not has_unpriced_calls(lead.metadata)
    for billed in (lead, *agents):
        calls = list(_billed_calls(billed, listed, what_if))
        if billed is lead and by in ("tool", "message"):
            charges = _divide_calls(lead.conversation, calls, by)
        else:
            charges = (_charge_whole(call, billed, by, lead) for call in calls)
        for name, cost, count in charges:
            costs[name] = costs.get(name, 0) + cost
            tokens[name] = tokens.get(name, 0) + count
        total += sum((Fraction(call.cost or 0) for call in calls), Fraction(0))
        total_tokens += sum(call.used.prompt + call.used.output for call in calls)
        is_known = is_known and all(call.cost is not None for call in calls)
        if billed is lead and not tokens and (unrecorded := _unrecorded(lead, agents)):
            is_known = False
            tokens[_UNRECORDED] = total_tokens = unrecorded
    rounded_tokens = _round_to_total(tokens, total_tokens)
    if not is_known:
        shares = [Share(name, None, count) for name, count in rounded_tokens.items()]
        return Report(None, total_tokens, _sort_shares(shares, by))
    counted = cost_in(lead.metadata) if what_if is None else None
    if counted is not None and Fraction(counted) > total:
        # The session counts model calls that leave no message.
        costs[_OTHER] = float(Fraction(counted) - total)
        total = Fraction(counted)
    micro_dollars = {name: cost * MICRO for name, cost in costs.items()}
    rounded = _round_to_total(micro_dollars, round(total * MICRO))
    shares = [Share(name, cost, rounded_tokens.get(name, 0)) for name, cost in rounded.items()]
    return Report(sum(rounded.values()), total_tokens, _sort_shares(shares, by))


def _unrecorded(lead: Billed, agents: Sequence[Billed]) -> int:
    """The tokens of a session without its sub-agents; loops need not add them to messages."""
    session = lead.metadata.get("id")
    own = [agent for agent in agents if agent.metadata.get("parent") == session]
    below = sum(_total_tokens(agent.metadata) for agent in own)
    return max(0, _total_tokens(lead.metadata) - below)


def _total_tokens(metadata: Mapping[str, Any]) -> int:
    counts = token_counts(metadata.get("usage"), "total_tokens")
    return counts[0] if counts else 0


def _sort_shares(shares: list[Share], by: By) -> list[Share]:
    if by == "step":
        return shares
    return sorted(shares, key=lambda share: (-(share.micro_dollars or 0), -share.tokens))


def _round_to_total(amounts: Mapping[str, float], total: int) -> dict[str, int]:
    """Round amounts to integers that add up to `total`, their rounded exact sum.

    Each is the difference of two rounded sums, of what comes up to it and before it.
    """
    rounded: dict[str, int] = {}
    reached, before = 0.0, 0
    for name, amount in amounts.items():
        reached += amount
        upto = min(round(reached), total)
        rounded[name] = upto - before
        before = upto
    if rounded:
        rounded[max(rounded, key=lambda name: amounts[name])] += total - before
    return rounded


# Charging model calls


class _ModelCall(NamedTuple):
    """A model call that is billed to a session.

    Attributes:
        step: Its step.
        used: Its tokens.
        prices: The proportions between the prices of its tokens.
        cost: US dollars; None if unknown.
    """

    step: Step
    used: Tokens
    prices: Prices
    cost: Decimal | None


_Charge = tuple[str, float, float]
"""The name of a part, US dollars and tokens."""


def _billed_calls(
    billed: Billed, listed: Mapping[str, ModelPrices], what_if: ModelPrices | None
) -> Iterator[_ModelCall]:
    point = billed.metadata.get("forked_from")
    forked_at = point.get("step") if isinstance(point, dict) else None
    billed_from = forked_at if isinstance(forked_at, int) else 0
    for item in billed.conversation:
        # What a fork took over was billed to the session it comes from.
        if not isinstance(item, Step) or item.number <= billed_from:
            continue
        if (used := _read_tokens(item)) is not None:
            cost = what_if.cost(used) if what_if else dollars(item.usage.get("cost_usd"))
            prices = what_if or listed.get(item.model or "", ModelPrices(_USUAL))
            yield _ModelCall(item, used, prices.of(used), cost)


def _charge_whole(call: _ModelCall, billed: Billed, by: By, lead: Billed) -> _Charge:
    """Charge a model call to the one part of the report that it belongs to."""
    if by == "model":
        name = _describe_model(call.step)
    elif by == "agent":
        name = billed.name
    else:
        name = f"step {call.step.number}" if billed is lead else f"agent {billed.name}"
    return name, float(call.cost or 0), call.used.prompt + call.used.output


def _divide_calls(
    conversation: Conversation, calls: Sequence[_ModelCall], by: Literal["tool", "message"]
) -> Iterator[_Charge]:
    """Divide model calls among what put their contexts there."""
    by_step = {call.step.number: call for call in calls}
    context = _Context()
    overhead: float | None = None
    for item in conversation:
        if isinstance(item, Step):
            if call := by_step.get(item.number):
                if overhead is None:
                    overhead = max(0.0, call.used.prompt - context.length)
                yield from _divide(call, context, overhead, by)
            for source, text in _parts_of_answer(item):
                context.add(source, text)
        elif isinstance(item, Prompt):
            context.add(Source("prompts", f"prompt {item.number}: {_begin(item.text)}"), item.text)
        elif item.message:
            name = "system prompt" if item.is_instruction else "added by hooks"
            context.add(Source(name, name), as_text(item.message.get("content")))
        else:
            yield from context.settle(by)
            context = _Context()
            if item.replacement:
                name = "context that replaced an earlier one"
                context.add(Source(name, name), json.dumps(item.replacement, default=str))
    yield from context.settle(by)


def _divide(
    call: _ModelCall, context: _Context, overhead: float, by: Literal["tool", "message"]
) -> Iterator[_Charge]:
    """Charge the context with its share of a model call; give what its definitions and answer cost."""
    used, length = call.used, context.length
    answer = _name_answer(call.step) if by == "message" else "answers"
    prices = _Bands.of(used, call.prices)
    raw = prices.up_to(used.prompt) + used.output * float(call.prices.output or 0)
    output = float(call.prices.output or 0)
    if not raw:
        # Without prices all tokens cost the same.
        prices, output, raw = _Bands([(used.prompt, 1.0)]), 1.0, used.prompt + used.output
    if not raw:
        # A provider may report a cost without tokens, or an answer without either.
        yield answer, float(call.cost or 0), 0
        return
    dollars_each = float(call.cost or 0) / raw
    overhead = min(overhead, max(0.0, used.prompt - length)) if length else used.prompt
    if overhead:
        yield _DEFINITIONS, prices.up_to(overhead) * dollars_each, overhead
    if used.prompt > overhead:
        scale = (used.prompt - overhead) / length
        context.charge(length, 0, scale)
        for end, price in prices.as_beginnings():
            context.charge((end - overhead) / scale, price * scale * dollars_each, 0)
    if used.output:
        yield answer, used.output * output * dollars_each, used.output


class _Bands:
    """The prices of a request's input: of what came from the cache, went into it, or neither.

    Args:
        bands: Pairs of the token where a band ends and its price, in order.
    """

    def __init__(self, bands: Sequence[tuple[int, float]]) -> None:
        self._bands = bands

    @classmethod
    def of(cls, used: Tokens, prices: Prices) -> _Bands:
        written = used.cache_read + used.cache_write
        return cls(
            [
                (used.cache_read, float(prices.cache_read or 0)),
                (written, float(prices.cache_write or 0)),
                (written + used.input, float(prices.input or 0)),
            ]
        )

    def up_to(self, tokens: float) -> float:
        """The price of the first tokens."""
        price, start = 0.0, 0.0
        for end, each in self._bands:
            price += max(0.0, min(end, tokens) - start) * each
            start = end
        return price

    def as_beginnings(self) -> Iterator[tuple[int, float]]:
        """Yield pairs of a token and a price for all before it; a token costs the sum of its prices."""
        following = 0.0
        for end, each in reversed(self._bands):
            yield end, each - following
            following = each


class _Context:
    """The context of requests as a line: each part has an interval, in estimated tokens.

    A model call charges the beginning of the line, however many parts that has; the parts learn of their
    charges together in the end. A session of many steps thus takes no longer for each of them.
    """

    def __init__(self) -> None:
        self.length = 0.0
        self._parts: list[tuple[Source, float]] = []
        self._charges: list[tuple[float, float, float]] = []

    def add(self, source: Source, text: str) -> None:
        self._parts.append((source, self.length))
        self.length += max(len(text.encode("utf-8", "replace")), 1) / _BYTES_PER_TOKEN

    def charge(self, end: float, dollars: float, tokens: float) -> None:
        """Charge the line up to `end` with so many US dollars and billed tokens for each of its tokens."""
        if end > 0:
            self._charges.append((min(end, self.length), dollars, tokens))

    def settle(self, by: Literal["tool", "message"]) -> list[_Charge]:
        """Return the charges of the parts that have any."""
        settled: list[_Charge] = []
        left = sorted(self._charges, key=lambda charge: charge[0])
        at, price, count = self.length, 0.0, 0.0
        # From the end, where nothing was charged yet, to the beginning, which every call charges.
        for source, start in reversed(self._parts):
            cost = tokens = 0.0
            while left and left[-1][0] > start:
                end, dollars, billed = left.pop()
                cost += (at - end) * price
                tokens += (at - end) * count
                at, price, count = end, price + dollars, count + billed
            cost += (at - start) * price
            tokens += (at - start) * count
            at = start
            if tokens:
                # Prices that were added and taken away again may leave a rounding error below zero.
                settled.append((getattr(source, by), max(0.0, cost), tokens))
        return settled[::-1]


def _describe_model(step: Step) -> str:
    model = one_line(step.model or "unknown model", 60)
    if not step.switched:
        return model
    return f"{model} instead of {one_line(step.requested_model or 'another model', 60)}"


def _read_tokens(step: Step) -> Tokens | None:
    """The tokens of a model call; None if they are unknown."""
    usage = step.usage

    def count(key: str) -> int:
        value = usage.get(key)
        return value if isinstance(value, int) and value > 0 else 0

    if not usage:
        return None
    read, write = count("cache_read_tokens"), count("cache_write_tokens")
    fresh = max(0, count("input_tokens") - read - write)
    return Tokens(fresh, count("output_tokens"), read, write)


# The context


def _read_answer(step: Step) -> str:
    return text_in(step.message, "\n")


def _name_answer(step: Step) -> str:
    return f"answer {step.number}: {_begin(_read_answer(step))}"


def _parts_of_answer(step: Step) -> Iterator[tuple[Source, str]]:
    """Yield the parts that a step leaves in the context, each with its text."""
    inputs = "".join(json.dumps(call.input, default=str) for call in step.calls)
    yield Source("answers", _name_answer(step)), _read_answer(step) + inputs
    for call in step.calls:
        if call.result is not None:
            name = one_line(call.name, 60)
            yield Source(name, f"result of call {call.number}: {name}"), call.result


def _begin(text: str) -> str:
    return one_line(text, 50) or "(no text)"


# The cache

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
    miss_cost: float | None = None

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
    last: tuple[LoggedRequest, Tokens | None] | None = None
    for request in log:
        key = request.target
        step = steps.get(request.step) if answered[request.step] == request.number else None
        used = None if step is None else _read_tokens(step)
        row = CachedRequest(billed.name, request)
        if step is not None and used is not None:
            # What another model had in its cache has to be sent again, too.
            row = _measure(row, step, used, earlier.get(key, last), listed)
        yield row
        last = earlier[key] = request, used


def _measure(
    row: CachedRequest,
    step: Step,
    used: Tokens,
    earlier: tuple[LoggedRequest, Tokens | None] | None,
    listed: Mapping[str, ModelPrices],
) -> CachedRequest:
    request, reports = row.request, _reports_cache(step.usage)
    per_byte = used.prompt / max(request.size, 1)
    row = row._replace(
        input=used.prompt,
        same=None if request.same is None else round(request.same * per_byte),
        read=used.cache_read if reports else None,
        cost=dollars(step.usage.get("cost_usd")),
    )
    if not reports:
        return row
    missed = 0.0
    if earlier is not None:
        was_cached = _count_cached(*earlier, per_byte)
        # Estimates differ a little from what the provider counts.
        if row.is_break or used.cache_read < was_cached / 2:
            missed = max(min(was_cached, used.prompt) - used.cache_read, 0.0)
    return row._replace(missed=round(missed), miss_cost=_missed_cost(step, missed, listed))


def _reports_cache(usage: Mapping[str, Any]) -> bool:
    return any(isinstance(usage.get(f"cache_{way}_tokens"), int) for way in ("read", "write"))


def _count_cached(request: LoggedRequest, used: Tokens | None, per_byte: float) -> float:
    """The tokens of a request that are in the cache after it; estimated if the provider counts none."""
    if used is None:
        return 0
    if used.cache_write:
        return used.cache_read + used.cache_write
    if used.cache_read or used.prompt >= _MIN_CACHED:
        return request.stable * per_byte
    return 0


def _missed_cost(step: Step, missed: float, listed: Mapping[str, ModelPrices]) -> float | None:
    """The part of a model call's cost that reading tokens from the cache would have saved.

    Args:
        step: The model call.
        missed: The tokens, which follow those that were read from the cache.
        listed: The prices of all models.

    Returns:
        US dollars; None if the cost of the call is unknown.
    """
    used, cost = _read_tokens(step), dollars(step.usage.get("cost_usd"))
    if used is None or cost is None:
        return None
    prices = listed.get(step.model or "", ModelPrices(_USUAL)).of(used)
    bands = _Bands.of(used, prices)
    total = bands.up_to(used.prompt) + float(prices.output or 0) * used.output
    charged = bands.up_to(used.cache_read + missed) - bands.up_to(used.cache_read)
    saved = charged - missed * float(prices.cache_read or 0)
    return float(cost) * saved / total if total else 0.0
