"""Notices a model that goes round in circles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_modules._shared.loop.calls import Call


class Progress:
    """Counts how often in a row the same calls had the same results.

    An answer with several calls counts as a whole: as long as one of them is new, or has a new
    result, the turn gets on.
    """

    def __init__(self) -> None:
        self._last: list[tuple[str, dict[str, Any], Any]] | None = None
        self.times = 0

    def note(self, calls: list[Call], results: Mapping[str, Any]) -> int:
        """How often the calls of an answer, the last one included, ended just like this.

        Args:
            calls: The calls of an answer.
            results: What the model was told of them, by call id.
        """
        done = [(call.name, call.arguments, results.get(call.id)) for call in calls]
        self.times = self.times + 1 if done == self._last else 1
        self._last = done
        return self.times


def warning(calls: list[Call], times: int, left: int) -> str:
    """What the model is told before the turn is ended.

    Args:
        calls: The calls that repeat.
        times: How often in a row they had the same results.
        left: After how many more the turn ends.
    """
    return (
        f"[{_named(calls)} was called {times} times in a row with the same input and had the same "
        f"result each time; after {left} more the turn is ended. Do something else: change the "
        "input, wait longer, use another tool, or say what is missing.]"
    )


def conclusion(calls: list[Call], times: int) -> str:
    """The text of a turn that ends for want of progress."""
    return f"No progress: {_named(calls)} had the same result {times} times in a row"


def _named(calls: list[Call]) -> str:
    names = dict.fromkeys(call.name for call in calls)
    return " and ".join(f"'{name}'" for name in names)
