"""The cost of the parts of a conversation, and of what its requests could have read from the provider's cache.

Every model call is billed for the whole context it is sent. Its cost is therefore divided among what put
the context there: the output belongs to the answer, and the input to the system prompt, the prompts,
earlier answers and tool results, in proportion to their lengths. What came from the cache is the
beginning of the context and is charged at its lower price. A long tool result costs again in every
later call, less the cache.

Amounts are exact fractions until the end; the rounded parts add up to the rounded total.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from amplifier_app.base.errors import UsageError
from amplifier_app.base.price_files import price_lists
from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.request_log import LoggedRequest
from amplifier_app.sessions.conversation import Call, Conversation, Prompt, Step
from amplifier_app.sessions.summary import cost_in, has_unpriced_calls
from amplifier_app.sessions.tool_calls import as_text, text_in
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import ModelPrices, Prices, Tokens, merge_lists
from amplifier_support.text import did_you_mean
from amplifier_support.usage import dollars, token_counts


def model_prices() -> dict[str, ModelPrices]:
    """The prices of all listed models, by model id.

    Raises:
        ConfigError: The table of prices that the user has fetched is damaged.
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

    step: str
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
    costs: dict[str, Fraction] = {}
    tokens: dict[str, Fraction] = {}
    # The session counts model calls without a price that leave no message.
    is_known = what_if is not None or not has_unpriced_calls(lead.metadata)
    for billed in (lead, *agents):
        for charge in _charges(billed, listed, what_if):
            name = charge.model if by == "model" else billed.name
            if by not in ("agent", "model"):
                name = getattr(charge.source, by) if billed is lead else f"agent {billed.name}"
            is_known = is_known and charge.cost is not None
            costs[name] = costs.get(name, Fraction(0)) + (charge.cost or 0)
            tokens[name] = tokens.get(name, Fraction(0)) + charge.tokens
        if billed is lead and not tokens and (unrecorded := _unrecorded(lead, agents)):
            is_known = False
            tokens[_UNRECORDED] = Fraction(unrecorded)
    rounded_tokens = _round_to_total(tokens, round(sum(tokens.values(), Fraction(0))))
    if not is_known:
        shares = [Share(name, None, count) for name, count in rounded_tokens.items()]
        return Report(None, sum(rounded_tokens.values()), _sort_shares(shares, by))
    total = sum(costs.values(), Fraction(0))
    counted = cost_in(lead.metadata) if what_if is None else None
    if counted is not None and Fraction(counted) > total:
        # The session counts model calls that leave no message.
        costs[_OTHER] = Fraction(counted) - total
        total = Fraction(counted)
    rounded = _round_to_total(
        {name: cost * MICRO for name, cost in costs.items()}, round(total * MICRO)
    )
    shares = [Share(name, cost, rounded_tokens.get(name, 0)) for name, cost in rounded.items()]
    return Report(sum(rounded.values()), sum(rounded_tokens.values()), _sort_shares(shares, by))


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


def _round_to_total(amounts: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Round amounts to integers that add up to the total: the largest remainders are rounded up."""
    rounded = {name: amount.numerator // amount.denominator for name, amount in amounts.items()}
    rest = total - sum(rounded.values())
    by_remainder = sorted(amounts, key=lambda name: rounded[name] - amounts[name])
    for name in by_remainder[:rest]:
        rounded[name] += 1
    return rounded


# Charging model calls


class _Charge(NamedTuple):
    source: Source
    model: str
    cost: Fraction | None
    tokens: Fraction


class _Held(NamedTuple):
    """A part of the context, and its estimated tokens."""

    source: Source
    tokens: Fraction


def _charges(
    billed: Billed, listed: Mapping[str, ModelPrices], what_if: ModelPrices | None
) -> Iterable[_Charge]:
    point = billed.metadata.get("forked_from")
    forked_at = point.get("step") if isinstance(point, dict) else None
    billed_from = forked_at if isinstance(forked_at, int) else 0
    context: list[_Held] = []
    overhead: Fraction | None = None
    for item in billed.conversation:
        if isinstance(item, Step):
            used = _read_tokens(item)
            # What a fork took over was billed to the session it comes from.
            if used is not None and item.number > billed_from:
                if overhead is None:
                    held = sum((part.tokens for part in context), Fraction(0))
                    overhead = max(Fraction(0), used.prompt - held)
                cost = what_if.cost(used) if what_if else dollars(item.usage.get("cost_usd"))
                prices = what_if or listed.get(item.model or "", ModelPrices(_USUAL))
                yield from _of_step(item, used, context, overhead, prices.of(used), cost)
            context += _of_answer(item)
        elif isinstance(item, Prompt):
            source = Source("prompts", "prompts", f"prompt {item.number}: {_begin(item.text)}")
            context.append(_measure_text(source, item.text))
        elif item.message:
            name = "system prompt" if item.is_instruction else "added by hooks"
            text = as_text(item.message.get("content"))
            context.append(_measure_text(Source(name, name, name), text))
        else:
            name = "context that replaced an earlier one"
            text = json.dumps(item.replacement, default=str)
            context[:] = [_measure_text(Source("", name, name), text)] if item.replacement else []


def _of_step(
    step: Step,
    used: Tokens,
    context: list[_Held],
    overhead: Fraction,
    prices: Prices,
    cost: Decimal | None,
) -> Iterable[_Charge]:
    name, model = f"step {step.number}", _describe_model(step)
    definitions = Source(name, _DEFINITIONS, _DEFINITIONS)
    held = sum((part.tokens for part in context), Fraction(0))
    overhead = min(overhead, max(Fraction(0), used.prompt - held))
    scale = (used.prompt - overhead) / held if held else Fraction(0)
    parts = [_Held(definitions, overhead if held else Fraction(used.prompt))]
    parts += [_Held(part.source._replace(step=name), part.tokens * scale) for part in context]
    answer = Source(name, "answers", _name_answer(step))
    charged = _at_prices(parts, used, prices)
    charged.append((answer, Fraction(used.output), Fraction(prices.output or 0) * used.output))
    raw = sum((price for _, _, price in charged), Fraction(0))
    if not any(tokens for _, tokens, _ in charged):
        # A provider may report a cost without tokens, or an answer without either.
        yield _Charge(answer, model, None if cost is None else Fraction(cost), Fraction(0))
    for source, tokens, price in charged:
        if not tokens:
            continue
        share = price / raw if raw else tokens / sum(count for _, count, _ in charged)
        yield _Charge(source, model, None if cost is None else Fraction(cost) * share, tokens)


def _describe_model(step: Step) -> str:
    model = one_line(step.model or "unknown model", 60)
    if not step.switched:
        return model
    return f"{model} instead of {one_line(step.requested_model or 'another model', 60)}"


def _at_prices(
    parts: list[_Held], used: Tokens, prices: Prices
) -> list[tuple[Source, Fraction, Fraction]]:
    """The parts of a request with their tokens and prices: from the cache, into it, or neither."""
    left = [
        [Fraction(used.cache_read), Fraction(prices.cache_read or 0)],
        [Fraction(used.cache_write), Fraction(prices.cache_write or 0)],
        [Fraction(used.input), Fraction(prices.input or 0)],
    ]
    charged: list[tuple[Source, Fraction, Fraction]] = []
    for source, tokens in parts:
        price, uncharged = Fraction(0), tokens
        for band in left:
            taken = min(uncharged, band[0])
            band[0] -= taken
            uncharged -= taken
            price += taken * band[1]
        charged.append((source, tokens, price))
    return charged


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


def _measure_text(source: Source, text: str) -> _Held:
    size = len(text.encode("utf-8", "replace"))
    return _Held(source, Fraction(max(size, 1), _BYTES_PER_TOKEN))


def _read_answer(step: Step) -> str:
    return text_in(step.message, "\n")


def _name_answer(step: Step) -> str:
    return f"answer {step.number}: {_begin(_read_answer(step))}"


def _of_answer(step: Step) -> list[_Held]:
    name = _name_answer(step)
    inputs = "".join(json.dumps(call.input, default=str) for call in step.calls)
    held = [_measure_text(Source("", "answers", name), _read_answer(step) + inputs)]
    return held + [_of_result(call) for call in step.calls if call.result is not None]


def _of_result(call: Call) -> _Held:
    name = one_line(call.name, 60)
    return _measure_text(
        Source("", name, f"result of call {call.number}: {name}"), call.result or ""
    )


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
    return row._replace(missed=round(missed), miss_cost=_missed_cost(step, missed, listed))


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


def _missed_cost(
    step: Step, missed: Fraction, listed: Mapping[str, ModelPrices]
) -> Fraction | None:
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
    source = Source("", "", "")
    parts = Fraction(used.cache_read), missed, used.prompt - used.cache_read - missed
    charged = _at_prices([_Held(source, part) for part in parts], used, prices)
    total = sum((price for _, _, price in charged), Fraction(prices.output or 0) * used.output)
    saved = charged[1][2] - missed * Fraction(prices.cache_read or 0)
    return Fraction(cost) * saved / total if total else Fraction(0)
