"""What makes the views that requests get, and what it works with."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from amplifier_modules._shared.context.compaction import Limits, View
from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.context.ledger import Ledger


class Strategy(Protocol):
    """Makes views of one conversation; may keep what it found out for the next one."""

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        """A view of `ledger` within `limits`; `provider` is the request's, or None."""
        ...

    def forget(self) -> None:
        """The history has been replaced: nothing found out about it holds any more."""
        ...


class StrategyInputs(NamedTuple):
    """What a strategy may need in addition to the conversation.

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
