"""The parts that a loop keeps between turns, and those that one turn shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amplifier_modules._shared.history.parsing import ParsedMessages
from amplifier_modules._shared.loop.answered import Fallbacks, Switches, find_fallbacks
from amplifier_modules._shared.loop.budget import LimitRequests, StopSignal, find_budget
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.conversation import ContextWindow
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.loop.steering import Steering
from amplifier_modules._shared.loop.streaming import AnswerFormat
from amplifier_modules._shared.loop.tool_search import ToolSearch
from amplifier_modules._shared.module.spans import Span

Ask = Callable[[Any, Any, Channel, Span], Awaitable[Any]]
"""Calls a provider: (provider, request, channel, span) -> response; emits events for its blocks."""


@dataclass(eq=False, repr=False)  # each method is compiled at every start
class LoopState:
    """The parts of a loop that outlive its turns.

    Attributes:
        name: The orchestrator's module id.
        config: Its settings.
        ask: Calls a provider.
        checker: Checks tool inputs.
        messages: Cache of parsed messages.
        steering: Messages to the running turn.
        window: The part of the conversation that fits into requests.
        answer_format: The form of the answers.
        tool_search: Selects the tools to offer.
        switches: The model that answers, if it is not the requested one.
    """

    name: str
    config: LoopConfig
    ask: Ask
    checker: InputChecker = field(default_factory=InputChecker)
    messages: ParsedMessages = field(default_factory=ParsedMessages)
    steering: Steering = field(default_factory=Steering)
    window: ContextWindow = field(default_factory=ContextWindow)
    answer_format: AnswerFormat = field(default_factory=AnswerFormat)
    tool_search: ToolSearch = field(default_factory=ToolSearch)
    switches: Switches = field(default_factory=Switches)


class TurnParts:
    """The parts of the session and of the loop that a turn works with.

    Args:
        loop: See `LoopState`.
        context: See `amplifier_core.interfaces.ContextManager`.
        providers: Providers by name.
        tools: Tools by name.
        hooks: The hook registry.
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`; may be None.

    Attributes:
        budget: The session's budget.
        stop_signal: Stops the turn.
        channel: The turn's hooks.
        limits: Admits requests within the budget.
        fallbacks: Providers to use while another is unavailable.
    """

    def __init__(
        self,
        loop: LoopState,
        context: Any,
        providers: Mapping[str, Any],
        tools: Mapping[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> None:
        self.loop = loop
        self.context = context
        self.providers = providers
        self.tools = tools
        self.coordinator = coordinator
        self.budget = find_budget(coordinator)
        self.stop_signal = StopSignal(getattr(coordinator, "cancellation", None), self.budget)
        self.channel = Channel(hooks, context, coordinator, loop.name)
        self.limits = LimitRequests(self.budget, self.channel, self.stop_signal)
        self.fallbacks = Fallbacks(find_fallbacks(coordinator), providers)
