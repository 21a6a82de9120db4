"""The ways to make a view, by the name a mount plan gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_modules._shared.context.compaction import Limits, View, truncated
from amplifier_modules._shared.context.ledger import Ledger
from amplifier_modules._shared.context.strategy import Strategy, Surroundings


class Truncate:
    """Leaves out what is oldest: what is older than the recent turns is kept newest first, whole
    tool groups before anything else.
    """

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        return truncated(ledger, limits)

    def forget(self) -> None:
        pass


def _truncate(around: Surroundings) -> Strategy:
    return Truncate()


def _importance(around: Surroundings) -> Strategy:

    from amplifier_modules._shared.context.importance import Importance

    return Importance()


def _summarize(around: Surroundings) -> Strategy:
    from amplifier_modules._shared.context.summarize import Summarize

    return Summarize(around)


STRATEGIES: dict[str, Callable[[Surroundings], Strategy]] = {
    "truncate": _truncate,
    "summarize": _summarize,
    "importance": _importance,
}
