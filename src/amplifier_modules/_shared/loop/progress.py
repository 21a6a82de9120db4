"""Detects a model that repeats itself without progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_modules._shared.loop.calls import Call


class Progress:
    """Counts how often in a row the same calls had the same results.

    The calls of an answer count together: as long as one of them, or one result, is new, the turn
    makes progress.
    """

    def __init__(self) -> None:
        self._last: list[tuple[str, dict[str, Any], Any]] | None = None
        self.times = 0

    def note(self, calls: list[Call], results: Mapping[str, Any]) -> int:
        """Record the calls of an answer; returns how often in a row they had these results.

        Args:
            calls: The calls of an answer.
            results: Contents of their result messages, by call id.
        """
        done = [(call.name, call.arguments, results.get(call.id)) for call in calls]
        self.times = self.times + 1 if done == self._last else 1
        self._last = done
        return self.times


def warning(calls: list[Call], times: int, left: int) -> str:
    """The warning to the model before the turn is ended.

    Args:
        calls: The calls that repeat.
        times: How often in a row they had the same results.
        left: How many more repetitions end the turn.
    """
    return (
        f"[{_named(calls)} was called {times} times in a row with the same input and the same "
        f"result; the turn ends after {left} more. Do something else: change the input, wait "
        "longer, use another tool, or report what is missing.]"
    )


def conclusion(calls: list[Call], times: int) -> str:
    """The text of a turn that ends without progress."""
    return f"No progress: {_named(calls)} had the same result {times} times in a row"


def _named(calls: list[Call]) -> str:
    names = dict.fromkeys(call.name for call in calls)
    return " and ".join(f"'{name}'" for name in names)
