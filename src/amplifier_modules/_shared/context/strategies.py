"""The ways to make a view, by the name a mount plan gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .compaction import Limits, View, truncated
from .config import ContextConfig
from .ledger import Ledger


class Strategy(Protocol):
    """Makes views of one conversation; may keep what it found out for the next one."""

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        """A view of `ledger` within `limits`; `provider` is the request's, or None."""
        ...

    def forget(self) -> None:
        """The history has been replaced: nothing found out about it holds any more."""
        ...


class Surroundings(NamedTuple):
    """What a strategy may need beside the conversation.

    Attributes:
        config: The context's settings.
        context: The context itself, for what hooks inject.
        hooks: Where events go; None for nowhere.
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`; may be None.
    """

    config: ContextConfig
    context: Any
    hooks: Any
    coordinator: Any


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
    from .importance import Importance

    return Importance()


def _summarize(around: Surroundings) -> Strategy:
    from .summarize import Summarize

    return Summarize(around)


STRATEGIES: dict[str, Callable[[Surroundings], Strategy]] = {
    "truncate": _truncate,
    "summarize": _summarize,
    "importance": _importance,
}
