"""Views of a conversation that fit a request (Context Contract, Internal Compaction).

A view is built from a `Ledger` and never changes it. It keeps, in this order and as far as they fit:
system messages, the recent turns, the user's first message, then older messages in the order of the
strategy. A tool call and its results are kept or dropped together. The view is in conversation
order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from pydantic import BaseModel

from amplifier_core._foreign import describe_exception
from amplifier_modules._shared.context.ledger import Ledger, Unit
from amplifier_modules._shared.history.values import as_json_text
from amplifier_modules._shared.providers.tokens import PER_IMAGE, estimate_message, estimate_text
from amplifier_support.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

SAFETY_MARGIN = 1000
"""Tokens kept free in addition to the answer (Context Contract, get_messages_for_request)."""

_USUAL_OUTPUT = 8_192


class Window(NamedTuple):
    """A model's context window in tokens, and the part of it reserved for the answer."""

    whole: int
    output: int

    @property
    def budget(self) -> int:
        """Tokens left for a request."""
        budget = self.whole - self.output - SAFETY_MARGIN
        return budget if budget > 0 else self.whole // 2


def find_window(provider: Any) -> Window | None:
    """The window of the provider's model, if it reports one.

    Read from `defaults` of its `get_info()`: `context_window` and `max_output_tokens`. If only the
    window is known, a common output size is used.
    """
    if provider is None:
        return None
    try:
        defaults = provider.get_info().defaults or {}
        whole, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        if not whole:
            return None
        return Window(int(whole), int(output) if output else min(_USUAL_OUTPUT, int(whole) // 4))
    except Exception as error:  # third-party code; fall back to our own budget
        name, problem = getattr(provider, "name", provider), describe_exception(error, None)
        text = "Provider %s did not report its context window (%s); using max_tokens"
        logger.warning(text, name, problem)
        return None


LEAST = 64
"""Tokens below which a text is not shortened further."""

_NOTE = "\n[... {count:,} characters removed to fit the context window ...]\n"
_NOTE_CHARS = 80
_IMAGES = ("image", "image_url", "input_image")


def share(sizes: Sequence[int], room: int) -> int:
    """The cap at which `sizes`, each cut to it, add up to at most `room` (never below `LEAST`).

    Sizes below the cap leave their share to larger ones.
    """
    left, cap = room, 0
    ordered = sorted(sizes)
    for position, size in enumerate(ordered):
        cap = left // (len(ordered) - position)
        if size > cap:
            return max(cap, LEAST)
        left -= size
    return max(cap, LEAST, ordered[-1] if ordered else 0)


def shorten(message: Mapping[str, Any] | BaseModel, tokens: int) -> dict[str, Any]:
    """A copy whose text and images take at most about `tokens`.

    Text keeps its beginning and its end, with a note in between on how much is missing. Thinking
    and tool calls are never changed.
    """
    plain = _plain(message)
    return {**plain, "content": _cut(plain.get("content"), tokens)}


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    return dict(cast("Mapping[str, Any]", value))


def _size(content: object) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return estimate_text(content)
    if not isinstance(content, (list, tuple)):
        return estimate_text(as_json_text(content))
    return sum(_block_size(_plain_block(block)) for block in cast("list[object]", content))


def _block_size(block: Mapping[str, Any]) -> int:
    kind = block.get("type")
    if kind == "text":
        return _size(block.get("text"))
    if kind in _IMAGES:
        return PER_IMAGE
    return _size(block.get(_payload_key(block))) if kind == "tool_result" else 0


def _cut(content: object, tokens: int) -> Any:
    if isinstance(content, str):
        return cut_text(content, tokens)
    if not isinstance(content, (list, tuple)):
        return cut_text(as_json_text(content), tokens)
    blocks = [_plain_block(block) for block in cast("list[object]", content)]
    reserved = sum(min(_block_size(block), LEAST) for block in blocks)
    left = tokens
    for position, block in enumerate(blocks):
        # The first blocks get what they need, but each later one its minimum.
        reserved -= min(_block_size(block), LEAST)
        blocks[position] = _cut_block(block, max(0, left - reserved))
        left -= _block_size(blocks[position])
    return blocks


def _cut_block(block: dict[str, Any], tokens: int) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {**block, "text": cut_text(block["text"], tokens)}
    if kind in _IMAGES and tokens < PER_IMAGE:
        return {"type": "text", "text": "[image removed to fit the context window]"}
    if kind == "tool_result":
        key = _payload_key(block)
        return {**block, key: _cut(block.get(key), tokens)} if block.get(key) else block
    return block


def cut_text(text: str, tokens: int) -> str:
    """`text` in about `tokens`: two thirds from its beginning, one third from its end."""
    estimate = estimate_text(text)
    if estimate <= max(tokens, LEAST):
        return text
    # In scripts with several bytes per character, the same tokens hold fewer characters.
    room = max(len(text) * max(tokens, LEAST) // estimate - _NOTE_CHARS, LEAST)
    head, tail = room * 2 // 3, room // 3
    return text[:head] + _NOTE.format(count=len(text) - head - tail) + text[len(text) - tail :]


def _plain_block(block: object) -> dict[str, Any]:
    if isinstance(block, (Mapping, BaseModel)):
        return _plain(block)
    return {"type": "text", "text": str(block)}


def _payload_key(block: Mapping[str, Any]) -> str:
    return "output" if "output" in block else "content"


_MISSES = 64
"""Stop looking at older units after this many in a row do not fit."""


class Limits(NamedTuple):
    """Limits of a view; sizes are estimated tokens.

    Attributes:
        room: Its maximum size.
        target: Size up to which older messages are added; the difference is room to grow, so that
            the view, and the vendor's cache of it, serve many requests.
        keep_turns: Turns that count as recent.
        keep_messages: Messages that count as recent instead, if set.
        focus: What a summary must keep above all; empty for nothing in particular.
    """

    room: int
    target: int
    keep_turns: int
    keep_messages: int | None = None
    focus: str = ""


class View:
    """A compacted conversation that follows its ledger as that grows.

    Args:
        ledger: The conversation.
        limits: The limits it was built for.
        choice: The units to keep; chosen while `ledger.lock` was held, and it is still held.
        strategy: Name of the strategy that built it.
        summary: A message that replaces the dropped ones.
        problem: Why the configured strategy could not build it, if so.

    Attributes:
        messages: Stored messages, or shortened copies, in conversation order.
        tokens: Their estimate.
        asked_for: It was built by `compact()` and is used even if everything would fit.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        choice: Choice,
        *,
        strategy: str,
        summary: dict[str, Any] | None = None,
        problem: str | None = None,
    ) -> None:
        kept = [unit for unit in choice.units.values() if unit.members]
        indices = sorted(index for unit in kept for index in unit.members)
        stored, estimates, copies = ledger.messages, ledger.estimates, choice.copies
        self.messages = [copies.get(i) or stored[i] for i in indices]
        self.tokens = sum(
            estimate_message(copies[i]) if i in copies else estimates[i] for i in indices
        )
        if summary is not None:
            self.messages.insert(_opening(ledger, indices), summary)
            self.tokens += estimate_message(summary)
        self.limits = limits
        self.strategy = strategy
        self.problem = problem
        self.asked_for = False
        self._kept = {unit.number for unit in kept}
        self._known_units = len(ledger.units)
        self._known_messages = len(stored)

    def is_best(self, ledger: Ledger, room: int) -> bool:
        """Return True if rebuilding it is pointless: it was built for this room from these messages."""
        return self.limits.room == room and self._known_messages == len(ledger.messages)

    def follow(self, ledger: Ledger) -> None:
        """Append messages stored since; the cost depends only on those.

        A result whose call is not in the view is dropped.
        """
        for index in range(self._known_messages, len(ledger.messages)):
            unit = ledger.find_unit(index)
            if unit.number in self._kept or unit.number >= self._known_units:
                if unit.kind == "orphan":
                    continue
                self.messages.append(ledger.messages[index])
                self.tokens += ledger.estimates[index]
        self._known_messages = len(ledger.messages)


def choose(ledger: Ledger, limits: Limits, *older: Iterable[Unit]) -> Choice:
    """Choose the units to keep; the caller holds `ledger.lock`.

    Args:
        ledger: The conversation.
        limits: The limits of the view.
        *older: Orders of units to fill the target with, each best first, used one after another.
    """
    ledger.group()
    choice = Choice(ledger, limits.room)
    _take_systems(choice, ledger, limits)
    if not _take_all_recent(choice, ledger, limits):
        _take_essential(choice, ledger)
        _take_newest_recent(choice, ledger, limits)
    if ledger.prompts:
        choice.take(ledger.prompts[0], (limits.room + limits.target) // 2)
    for units in older:
        choice.fill(units, limits.target)
    return choice


def newest_first(ledger: Ledger) -> tuple[Iterable[Unit], Iterable[Unit]]:
    """The order that drops the oldest units: tool groups first, then the rest."""
    ledger.group()
    return reversed(ledger.groups), reversed(ledger.others)


def truncated(ledger: Ledger, limits: Limits, problem: str | None = None) -> View:
    """A view without the oldest messages."""
    with ledger.lock:
        choice = choose(ledger, limits, *newest_first(ledger))
        return View(ledger, limits, choice, strategy="truncate", problem=problem)


class Choice:
    """Units chosen so far, with shortened copies of messages by index."""

    def __init__(self, ledger: Ledger, room: int) -> None:
        self.ledger = ledger
        self.room = room
        self.units: dict[int, Unit] = {}
        self.copies: dict[int, dict[str, Any]] = {}
        self.tokens = 0

    def add(self, unit: Unit) -> None:
        if unit.number not in self.units:
            self.units[unit.number] = unit
            self.tokens += unit.tokens

    def take(self, unit: Unit, limit: int) -> bool:
        """Add the unit if it fits under `limit`."""
        if unit.number in self.units:
            return True
        if self.tokens + unit.tokens > limit:
            return False
        self.add(unit)
        return True

    def fill(self, units: Iterable[Unit], limit: int) -> None:
        """Add units in the given order as long as they fit under `limit`."""
        misses = 0
        for unit in units:
            if self.take(unit, limit):
                misses = 0
                continue
            misses += 1
            if misses >= _MISSES:
                return

    def add_shortened(self, units: list[Unit], room: int) -> bool:
        """Add units with their texts cut to about `room` in total.

        Tool results are cut first, then other text. Returns whether that was enough.
        """
        indices = [index for unit in units for index in unit.members]
        results = [i for i in indices if self.ledger.messages[i]["role"] in ("tool", "function")]
        copies: dict[int, dict[str, Any]] = {}
        total = self._shorten(results, sum(unit.tokens for unit in units), room, copies)
        if total > room:
            others = [i for i in indices if i not in copies]
            total = self._shorten(others, total, room, copies)
        for unit in units:
            if unit.number not in self.units:
                self.units[unit.number] = unit
        self.copies |= copies
        self.tokens += total
        return total <= room

    def _shorten(
        self, indices: list[int], total: int, room: int, copies: dict[int, dict[str, Any]]
    ) -> int:
        """Cut the messages at `indices`; returns what remains of `total`."""
        stored = self.ledger.messages
        # The text and images, which may be cut.
        sizes = {index: _size(_plain(stored[index]).get("content")) for index in indices}
        cap = share(list(sizes.values()), room - (total - sum(sizes.values())))
        for index, size in sizes.items():
            if size > cap:
                copies[index] = shorten(stored[index], cap)
                total += estimate_message(copies[index]) - self.ledger.estimates[index]
        return total


def _take_systems(choice: Choice, ledger: Ledger, limits: Limits) -> None:
    """Add the system messages, unless those from hooks fill more than half the room."""
    for unit in ledger.systems:
        if not unit.injected:
            choice.add(unit)
    for unit in reversed(ledger.systems):
        if unit.injected and not choice.take(unit, limits.room // 2):
            return


def _take_all_recent(choice: Choice, ledger: Ledger, limits: Limits) -> bool:
    """Add the recent turns if all of them fit; stops looking at the first that does not."""
    recent: list[Unit] = []
    tokens = choice.tokens
    for unit in ledger.latest(limits.keep_turns, limits.keep_messages):
        tokens += unit.tokens
        if tokens > limits.room:
            return False
        recent.append(unit)
    for unit in recent:
        choice.add(unit)
    return True


def _take_essential(choice: Choice, ledger: Ledger) -> None:
    """Add the newest unit and the prompt it belongs to, shortened if they do not fit."""
    newest = ledger.newest()
    prompt = ledger.prompts[-1] if ledger.prompts else None
    units = list(dict.fromkeys(unit for unit in (prompt, newest) if unit is not None))
    room = choice.room - choice.tokens
    if sum(unit.tokens for unit in units) <= room:
        for unit in units:
            choice.add(unit)
    else:
        choice.add_shortened(units, max(room, LEAST))


def _take_newest_recent(choice: Choice, ledger: Ledger, limits: Limits) -> None:
    """Add recent units, newest first, up to the target; a single huge one is shortened."""
    huge = limits.target // 2
    for unit in ledger.latest(limits.keep_turns, limits.keep_messages):
        if choice.take(unit, limits.target):
            continue
        left = limits.target - choice.tokens
        if unit.tokens <= huge or left < huge // 2:
            return
        choice.add_shortened([unit], huge // 2)


def _opening(ledger: Ledger, indices: list[int]) -> int:
    """Return the number of kept messages before the dropped ones: instructions, first prompt."""
    first = ledger.prompts[0].members if ledger.prompts else []
    for position, index in enumerate(indices):
        if index not in first and ledger.find_unit(index).kind != "system":
            return position
    return len(indices)


class Strategy(Protocol):
    """Builds views of one conversation; may cache results for the next one."""

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        """A view of `ledger` within `limits`; `provider` is the request's, or None."""
        ...

    def forget(self) -> None:
        """Drop cached results, because the history has been replaced."""
        ...
