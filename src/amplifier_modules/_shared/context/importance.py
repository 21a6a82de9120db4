"""Views that drop the least important messages.

The score of a unit is its position in the conversation, counted in units, plus a bonus by type: a
unit with a bonus of 100 is kept as long as a plain exchange 100 units newer. The order of two units
never changes over time, so each is scored once.

    the user's own words                                  +150
    a call that failed                                     +75
    a call that changes something                          +75
      whose file is named again later                      +50
    an answer without calls                                +25
    a call that only looked at a file that was looked at
      or changed again later                              -100
    what a hook put in                                    -100
    each doubling of its size beyond 512 tokens            -10
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Any, cast

from amplifier_modules._shared.context.compaction import Limits, View, choose
from amplifier_modules._shared.context.ledger import Ledger, Unit
from amplifier_modules._shared.history.values import (
    RESULT_ROLES,
    call_parts,
    mappings,
    stored_calls,
)

INSTRUCTION = 150
FAILED = 75
CHANGES = 75
NAMED_AGAIN = 50
ANSWER = 25
SUPERSEDED = -100
INJECTED = -100
DOUBLING = -10
LARGE = 512

_CHANGING = re.compile(r"write|edit|patch|create|replace|delete|remove|rename|move|insert", re.I)
_FILE_ARGUMENT = re.compile(r'"(?:path|file(?:_?path|_?name)?)"\s*:\s*"((?:[^"\\]|\\.){1,500})"')
_FILE_KEYS = ("path", "file_path", "filename", "file_name", "file")
_AROUND_WORDS = ".,:;!?'\"`()[]{}<>*"
_LOOKED_AT_OF_PROMPT = 4_000
"""Characters of a prompt that are searched for file names."""


class Importance:
    """Fills a view with the units that score highest; see the module's docstring."""

    def __init__(self) -> None:
        self.forget()

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        with ledger.lock:
            self._follow(ledger)
            choice = choose(ledger, limits, self._best_first(ledger))
            return View(ledger, limits, choice, strategy="importance")

    def forget(self) -> None:
        self._known = 0
        self._facts: dict[int, _Facts] = {}
        self._by_head_start: dict[int, list[int]] = {}
        self._last_use: dict[str, int] = {}

    def _best_first(self, ledger: Ledger) -> Iterator[Unit]:
        """All units except system messages and orphans, by score; evaluated lazily."""
        orders = (_newest_first(*item) for item in self._by_head_start.items())
        for _, number, bonus in merge(*orders, reverse=True):
            # A unit whose bonus has changed is still listed under its old one.
            if self._facts[number].bonus == bonus:
                yield ledger.units[number]

    def _follow(self, ledger: Ledger) -> None:
        """Score units stored since the last view; the cost depends only on those."""
        ledger.group()
        changed: dict[int, Unit] = {}
        for index in range(self._known, len(ledger.messages)):
            unit = ledger.find_unit(index)
            if unit.kind in ("system", "orphan"):
                continue
            facts = self._facts.get(unit.number)
            if facts is None:
                facts = self._facts[unit.number] = _Facts()
            changed[unit.number] = unit
            files = facts.read(ledger.messages[index], unit)
            for number in self._units_rescored_by(files, unit, facts):
                changed[number] = ledger.units[number]
        self._known = len(ledger.messages)
        for number, unit in changed.items():
            self._place(number, self._facts[number].score(unit))

    def _units_rescored_by(self, files: list[str], unit: Unit, facts: _Facts) -> Iterator[int]:
        """Earlier units whose score changes because `unit` names their files."""
        for file in files:
            number = self._last_use.get(file)
            if number is not None and number != unit.number:
                earlier = self._facts[number]
                if earlier.changes:
                    earlier.named_again = True
                elif unit.kind == "group":
                    earlier.superseded = True
                yield number
            if unit.kind == "group":
                self._last_use[file] = unit.number

    def _place(self, number: int, bonus: int) -> None:
        facts = self._facts[number]
        if facts.bonus == bonus:
            return
        facts.bonus = bonus
        numbers = self._by_head_start.setdefault(bonus, [])
        if not numbers or numbers[-1] < number:
            numbers.append(number)
        else:
            insort(numbers, number)


def _newest_first(bonus: int, numbers: list[int]) -> Iterator[tuple[int, int, int]]:
    """Score, number and bonus of units with the same bonus, best first."""
    for number in reversed(numbers):
        yield number + bonus, number, bonus


class _Facts:
    """Facts about a unit that determine its bonus."""

    __slots__ = ("bonus", "changes", "failed", "named_again", "superseded")

    def __init__(self) -> None:
        self.changes = False
        self.failed = False
        self.named_again = False
        self.superseded = False
        self.bonus: int | None = None

    def read(self, message: Mapping[str, Any], unit: Unit) -> list[str]:
        """Read one of the unit's messages; returns the files it names."""
        role, content = message["role"], message.get("content")
        if role == "assistant":
            return self._read_calls(message) if unit.kind == "group" else []
        if role in RESULT_ROLES or unit.kind == "group":
            self.failed = self.failed or _is_failure(message)
            return []
        if isinstance(content, str) and not unit.injected:
            words = content[:_LOOKED_AT_OF_PROMPT].split()
            return [word.strip(_AROUND_WORDS) for word in words if "." in word]
        return []

    def _read_calls(self, message: Mapping[str, Any]) -> list[str]:
        files: list[str] = []
        for call in stored_calls(message):
            name, arguments = call_parts(call)
            self.changes = self.changes or bool(_CHANGING.search(name))
            files += _find_files(arguments)
        return files

    def score(self, unit: Unit) -> int:
        """The unit's bonus."""
        if unit.injected:
            score = INJECTED
        elif unit.kind == "user":
            score = INSTRUCTION
        elif unit.kind == "assistant":
            score = ANSWER
        else:
            score = (
                FAILED * self.failed
                + CHANGES * self.changes
                + NAMED_AGAIN * self.named_again
                + SUPERSEDED * self.superseded
            )
        return score + DOUBLING * (unit.tokens // LARGE).bit_length()


def _find_files(arguments: object) -> list[str]:
    if isinstance(arguments, str):
        return _FILE_ARGUMENT.findall(arguments)
    if isinstance(arguments, Mapping):
        fields = cast("Mapping[str, Any]", arguments)
        return [value for key in _FILE_KEYS if isinstance(value := fields.get(key), str) and value]
    return []


def _is_failure(message: Mapping[str, Any]) -> bool:
    if message.get("is_error"):
        return True
    content = message.get("content")
    if isinstance(content, str):
        return content.startswith(("Error", "error:"))
    return any(block.get("is_error") for block in mappings(content))
