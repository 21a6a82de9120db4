"""Views of a conversation that fit a request (Context Contract, Internal Compaction).

A view is made of a `Ledger` and never changes it. What is kept, in this order and as far as it
fits: system messages; the recent turns; the first message of the user; then what is older, in the
order a strategy wants. A tool call and its results are kept or left out together. The view is in
the order of the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from amplifier_modules._shared.context.ledger import Ledger, Unit
from amplifier_modules._shared.context.shorten import LEAST, share, shortenable, shortened
from amplifier_modules._shared.providers.tokens import estimate_message

_MISSES = 64
"""Units in a row that do not fit, after which nothing older is looked at."""


class Limits(NamedTuple):
    """What a view has to keep to; sizes are estimated tokens.

    Attributes:
        room: The most it may take.
        target: What older messages may fill it up to; the difference is room to grow, so that the
            view, and a vendor's cache of it, serve many requests.
        keep_turns: Turns that count as recent.
        keep_messages: Messages that count as recent instead, if set.
    """

    room: int
    target: int
    keep_turns: int
    keep_messages: int | None = None


class View:
    """A compacted conversation that follows its ledger as that grows.

    Args:
        ledger: The conversation.
        limits: What it was made for.
        choice: What is kept of it; chosen while `ledger.lock` was held, as it still is.
        strategy: Name of the strategy that made it.
        summary: A message that stands for what is left out.
        problem: Why the strategy asked for could not make it, if so.

    Attributes:
        messages: Stored messages, or shortened copies, in conversation order.
        tokens: Their estimate.
        asked_for: It was made by `compact()` and stands even if everything would fit.
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
        """Whether making it anew could not help: it was made for this room, of these messages."""
        return self.limits.room == room and self._known_messages == len(ledger.messages)

    def follow(self, ledger: Ledger) -> None:
        """Append what was stored since; costs what is new.

        A result whose call the view does not have is left out.
        """
        for index in range(self._known_messages, len(ledger.messages)):
            unit = ledger.unit_of(index)
            if unit.number in self._kept or unit.number >= self._known_units:
                if unit.kind == "orphan":
                    continue
                self.messages.append(ledger.messages[index])
                self.tokens += ledger.estimates[index]
        self._known_messages = len(ledger.messages)


def choose(ledger: Ledger, limits: Limits, *older: Iterable[Unit]) -> Choice:
    """What to keep; the caller holds `ledger.lock`.

    Args:
        ledger: The conversation.
        limits: What the view has to keep to.
        *older: Units to fill the target with, best first; one such order after the other.
    """
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
    """The order that loses what is oldest: tool groups, then the rest."""
    return reversed(ledger.groups), reversed(ledger.others)


def truncated(ledger: Ledger, limits: Limits, problem: str | None = None) -> View:
    """A view that leaves out what is oldest."""
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
        """Add as many as fit under `limit`, in the order given."""
        misses = 0
        for unit in units:
            if self.take(unit, limit):
                misses = 0
                continue
            misses += 1
            if misses >= _MISSES:
                return

    def add_shortened(self, units: list[Unit], room: int) -> bool:
        """Add units with their texts cut so that together they take about `room`.

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
        sizes = {index: shortenable(stored[index]) for index in indices}
        cap = share(list(sizes.values()), room - (total - sum(sizes.values())))
        for index, size in sizes.items():
            if size > cap:
                copies[index] = shortened(stored[index], cap)
                total += estimate_message(copies[index]) - self.ledger.estimates[index]
        return total


def _take_systems(choice: Choice, ledger: Ledger, limits: Limits) -> None:
    """System messages are always kept, unless hooks have piled them up to half the room."""
    for unit in ledger.systems:
        if not unit.injected:
            choice.add(unit)
    for unit in reversed(ledger.systems):
        if unit.injected and not choice.take(unit, limits.room // 2):
            return


def _take_all_recent(choice: Choice, ledger: Ledger, limits: Limits) -> bool:
    """Add the recent turns if all of them fit; looks at no more than what fits."""
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
    """Add the newest unit and the prompt it serves, shortened if they do not fit whole."""
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
    """Add recent units, newest first, up to the target; one that alone is huge is shortened."""
    huge = limits.target // 2
    for unit in ledger.latest(limits.keep_turns, limits.keep_messages):
        if choice.take(unit, limits.target):
            continue
        left = limits.target - choice.tokens
        if unit.tokens <= huge or left < huge // 2:
            return
        choice.add_shortened([unit], huge // 2)


def _opening(ledger: Ledger, indices: list[int]) -> int:
    """How many of the kept messages stand before what is left out: instructions, first prompt."""
    first = ledger.prompts[0].members if ledger.prompts else []
    for position, index in enumerate(indices):
        if index not in first and ledger.unit_of(index).kind != "system":
            return position
    return len(indices)
