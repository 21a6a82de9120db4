"""The stored conversation and the grouping of its messages."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from amplifier_modules._shared.history.values import call_ids, result_ids
from amplifier_modules._shared.providers.tokens import estimate_message

Kind = Literal["system", "user", "assistant", "group", "orphan"]


class Unit:
    """Messages that are kept or dropped together (Context Specification, Tool Pair Atomicity).

    A unit is one message, or a `group`: an assistant message with its calls and all their results.
    An `orphan` is a result without a call.

    Attributes:
        number: Position in `Ledger.units`.
        turn: Number of the turn it belongs to; 0 before the first user message.
        members: Indices of its messages in `Ledger.messages`, ascending.
        tokens: Their estimate.
        injected: Whether a hook added it.
    """

    __slots__ = ("absorbed_by", "injected", "kind", "members", "number", "tokens", "turn")

    def __init__(self, number: int, kind: Kind, turn: int, *, injected: bool = False) -> None:
        self.number = number
        self.kind: Kind = kind
        self.turn = turn
        self.injected = injected
        self.members: tuple[int, ...] = ()
        self.tokens = 0
        self.absorbed_by: Unit | None = None


class Ledger:
    """Messages exactly as received, and their grouping for compaction.

    The cost of adding a message does not depend on the number of messages. Messages are grouped into
    units once `group` was called, since most conversations are never compacted. Thread-safe: `lock`
    guards every change; callers that read more than one attribute must hold it.

    Attributes:
        messages: All messages, in order.
        estimates: Their estimated tokens; `tokens` is the sum.
        generation: How often the whole history was replaced.
        units: The units in the order of their first messages; a unit is never moved.
        systems: The units of system messages.
        groups: The units of calls and their results.
        others: The units of user messages and of answers without calls.
        prompts: The units of prompts by the user.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.generation = 0
        self.reset(())

    def reset(self, messages: Iterable[dict[str, Any]]) -> None:
        """Replace everything by `messages`."""
        with self.lock:
            self.generation += 1
            self.messages: list[dict[str, Any]] = []
            self.estimates: list[int] = []
            self.tokens = 0
            self.units: list[Unit] = []
            self.systems: list[Unit] = []
            self.groups: list[Unit] = []
            self.others: list[Unit] = []
            self.prompts: list[Unit] = []
            self._by_message: list[Unit] = []
            self._owners: dict[str, Unit] = {}
            for message in messages:
                self.add(message)

    def add(self, message: dict[str, Any]) -> None:
        """Store a message.

        Raises:
            ValueError: It has no role.
        """
        check(message)
        with self.lock:
            estimate = estimate_message(message)
            self.messages.append(message)
            self.estimates.append(estimate)
            self.tokens += estimate
            if self._by_message:
                self.group()

    def group(self) -> None:
        """Group the messages, now and when they are added."""
        with self.lock:
            for index in range(len(self._by_message), len(self.messages)):
                unit = self._unit_for(self.messages[index])
                unit.members += (index,)
                # Most units have one message: no number of their own for each.
                unit.tokens = (
                    unit.tokens + self.estimates[index] if unit.tokens else self.estimates[index]
                )
                self._by_message.append(unit)

    def find_unit(self, index: int) -> Unit:
        """The unit of the message at `index`."""
        return _standing(self._by_message[index])

    def latest(self, keep_turns: int, keep_messages: int | None) -> Iterator[Unit]:
        """The recent units, newest first, without system messages and orphans.

        Args:
            keep_turns: How many turns it reaches back.
            keep_messages: How many messages it reaches back instead, extended to whole units.
        """
        if keep_messages is not None:
            first = max(0, len(self.messages) - keep_messages)
            indices = range(len(self.messages) - 1, first - 1, -1)
            yield from dict.fromkeys(
                unit
                for i in indices
                if (unit := self.find_unit(i)).kind not in ("system", "orphan")
            )
            return
        units = self.units
        oldest = (units[-1].turn if units else 0) - keep_turns + 1
        for unit in reversed(units):
            if unit.turn < oldest:
                return
            if unit.members and unit.kind not in ("system", "orphan"):
                yield unit

    def newest(self) -> Unit | None:
        """The last unit that belongs to the conversation."""
        return next(self.latest(1, None), None)

    def _unit_for(self, message: Mapping[str, Any]) -> Unit:
        role = message["role"]
        if role in ("system", "developer"):
            unit = self._open("system", message)
            self.systems.append(unit)
            return unit
        if role in ("tool", "function"):
            return self._answered(message) or self._open("orphan", message)
        if role == "assistant":
            return self._assistant(message)
        return self._answered(message) or self._user(message)

    def _answered(self, message: Mapping[str, Any]) -> Unit | None:
        """The group whose calls the message answers; several groups are merged into one."""
        ids = result_ids(message)
        owners = {_standing(self._owners[i]): None for i in ids if i in self._owners}
        if not owners:
            last = self.units[-1] if self.units else None
            nameless = not ids and message["role"] in ("tool", "function")
            return last if nameless and last is not None and last.kind == "group" else None
        first, *others = sorted(owners, key=lambda unit: unit.number)
        for other in others:
            first.members = tuple(sorted(first.members + other.members))
            first.tokens += other.tokens
            other.members, other.tokens, other.absorbed_by = (), 0, first
        return first

    def _assistant(self, message: Mapping[str, Any]) -> Unit:
        ids = call_ids(message)
        if not ids and not message.get("tool_calls"):
            unit = self._open("assistant", message)
            self.others.append(unit)
            return unit
        unit = self._open("group", message)
        self.groups.append(unit)
        self._owners.update(dict.fromkeys(ids, unit))
        return unit

    def _user(self, message: Mapping[str, Any]) -> Unit:
        unit = self._open("user", message)
        self.others.append(unit)
        if not unit.injected:
            unit.turn += 1
            self.prompts.append(unit)
        return unit

    def _open(self, kind: Kind, message: Mapping[str, Any]) -> Unit:
        metadata = message.get("metadata")
        injected = isinstance(metadata, Mapping) and metadata.get("source") == "hook"
        turn = self.units[-1].turn if self.units else 0
        unit = Unit(len(self.units), kind, turn, injected=injected)
        self.units.append(unit)
        return unit


def check(message: Mapping[str, Any]) -> None:
    """Reject an invalid message (Context Contract, add_message).

    Raises:
        ValueError: It has no role.
    """
    if type(message.get("role")) is not str:
        raise ValueError("Message must have 'role' field: one of system, user, assistant, tool")


def _standing(unit: Unit) -> Unit:
    while unit.absorbed_by is not None:
        unit = unit.absorbed_by
    return unit
