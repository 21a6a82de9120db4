"""Views that drop the least important messages.

The score of a unit is its position in the conversation, counted in units, plus a bonus by type: a
unit with a bonus of 100 is kept as long as a plain exchange 100 units newer.

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
from collections.abc import Mapping
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
            choice = choose(ledger, limits, self._best_first())
            return View(ledger, limits, choice, strategy="importance")

    def forget(self) -> None:
        self._read = 0
        self._facts: dict[Unit, _Facts] = {}
        self._last_use: dict[str, Unit] = {}

    def _best_first(self) -> list[Unit]:
        """All units except system messages and orphans, by score."""
        scores = {unit: unit.number + facts.score(unit) for unit, facts in self._facts.items()}
        return sorted(scores, key=lambda unit: (scores[unit], unit.number), reverse=True)

    def _follow(self, ledger: Ledger) -> None:
        """Read the messages stored since the last view."""
        ledger.group()
        for index in range(self._read, len(ledger.messages)):
            unit = ledger.find_unit(index)
            if unit.kind in ("system", "orphan"):
                continue
            files = self._facts.setdefault(unit, _Facts()).read(ledger.messages[index], unit)
            for file in files:
                earlier = self._last_use.get(file, unit)
                if earlier is not unit and self._facts[earlier].changes:
                    self._facts[earlier].named_again = True
                elif earlier is not unit and unit.kind == "group":
                    self._facts[earlier].superseded = True
                if unit.kind == "group":
                    self._last_use[file] = unit
        self._read = len(ledger.messages)


class _Facts:
    """Facts about a unit that determine its bonus."""

    __slots__ = ("changes", "failed", "named_again", "superseded")

    def __init__(self) -> None:
        self.changes = False
        self.failed = False
        self.named_again = False
        self.superseded = False

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
