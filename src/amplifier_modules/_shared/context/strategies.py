"""The compaction strategies, by their name in mount plans."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.context.compaction import Limits, View, truncated
from amplifier_modules._shared.context.ledger import Ledger
from amplifier_modules._shared.context.strategy import Strategy, StrategyInputs


class Truncate:
    """Drops the oldest messages: beyond the recent turns, the newest tool groups are kept first,
    then the newest other messages.
    """

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        return truncated(ledger, limits)

    def forget(self) -> None:
        pass


def make_strategy(name: str, inputs: StrategyInputs) -> Strategy:
    """The strategy with this name; only the chosen one is imported."""
    if name == "importance":
        from amplifier_modules._shared.context.importance import Importance

        return Importance()
    if name == "summarize":
        from amplifier_modules._shared.context.summarize import Summarize

        return Summarize(inputs)
    return Truncate()
