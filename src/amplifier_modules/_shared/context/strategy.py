"""The interface of compaction strategies, and their inputs."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from amplifier_modules._shared.context.compaction import Limits, View
from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.context.ledger import Ledger


class Strategy(Protocol):
    """Builds views of one conversation; may cache results for the next one."""

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        """A view of `ledger` within `limits`; `provider` is the request's, or None."""
        ...

    def forget(self) -> None:
        """Drop cached results, because the history has been replaced."""
        ...


class StrategyInputs(NamedTuple):
    """Inputs of a strategy in addition to the conversation.

    Attributes:
        config: The context's settings.
        context: The context itself, for injections by hooks.
        hooks: Where events go; None for nowhere.
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`; may be None.
    """

    config: ContextConfig
    context: Any
    hooks: Any
    coordinator: Any
