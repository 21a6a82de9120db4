"""The base of the bundled loops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier_modules._shared.loop.answered import PROVIDER_FALLBACK, PROVIDER_SWITCHED
from amplifier_modules._shared.loop.budget import BUDGET_REACHED, open_budget
from amplifier_modules._shared.loop.channel import TurnOutcome
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.exchange import CONTEXT_OVERFLOW
from amplifier_modules._shared.loop.interrupt import finish_despite_cancellation
from amplifier_modules._shared.loop.parts import LoopState, TurnParts
from amplifier_modules._shared.loop.steering import STEER_EVENTS
from amplifier_modules._shared.loop.streaming import complete, stream
from amplifier_modules._shared.loop.turn import Turn
from amplifier_modules._shared.module.spans import Span
from amplifier_support.session_capabilities import STEER


class LoopOrchestrator:
    """Runs turns: provider call, tool calls, and so on, until an answer without tool calls.

    Attributes:
        name: Module id; `orchestrator:complete` names it.
        streams: Whether it streams answers unless its settings say otherwise.
        config: The settings.
        state: The parts that outlive its turns.
        events: Names of the events it emits in addition to those that the kernel defines.
        steer: Queues a text for the running turn; see `Steering`.
    """

    name: ClassVar[str]
    streams: ClassVar[bool] = True
    events: ClassVar[tuple[str, ...]] = (
        *STEER_EVENTS,
        PROVIDER_FALLBACK,
        PROVIDER_SWITCHED,
        CONTEXT_OVERFLOW,
        BUDGET_REACHED,
    )
    turn_type: ClassVar[type[Turn]] = Turn

    def __init__(self, config: LoopConfig | None = None) -> None:
        self.config = config or LoopConfig()
        streams = self.streams and self.config.streaming
        self.state = LoopState(self.name, self.config, stream if streams else complete)
        self.steer = self.state.steering
        if self.config.debug:
            logging.getLogger("amplifier_modules._shared.loop").setLevel(logging.DEBUG)

    async def mount(self, coordinator: Any) -> None:
        """Mount as the session's orchestrator, with its capabilities and contributions.

        Raises:
            ValueError: `session.budget` of the plan is not valid.
        """
        coordinator.register_contributor(
            "observability.events", self.name, lambda: list(self.events)
        )
        budget = open_budget(coordinator)
        coordinator.register_contributor("session.stats", self.name, budget.stats)
        STEER.register(coordinator, self.steer)
        await coordinator.mount("orchestrator", self)

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: Mapping[str, Any],
        tools: Mapping[str, Any],
        hooks: Any,
        coordinator: Any = None,
        **kwargs: Any,
    ) -> str:
        """Run one turn (Orchestrator Contract).

        Args:
            prompt: The user's prompt.
            context: See `amplifier_core.interfaces.ContextManager`.
            providers: Providers by name.
            tools: Tools by the name the model uses.
            hooks: Hook registry, or anything with `async emit(event, data)`.
            coordinator: The session's coordinator. Without it the loop applies hook results
                itself, approval cannot be requested, and only the task can be cancelled.
            **kwargs: Ignored; for callers written for other orchestrators.

        Returns:
            The text of the last answer. If there is none, `orchestrator:complete` has the
            status ``incomplete`` and a ``reason``, and the text is ``"Max iterations reached"``,
            ``"Budget reached: …"``, ``"No progress: …"``, ``"Denied: …"`` by a hook, or nothing
            when the turn was cancelled.

        Raises:
            ValueError: The prompt is empty or there is no provider.
            amplifier_core.llm_errors.LLMError: The provider failed; any other exception of a
                provider or the context is raised unchanged, too.
            asyncio.CancelledError: The calling task was cancelled.
        """
        reset_turn = getattr(coordinator, "reset_turn", None)
        if callable(reset_turn):
            reset_turn()
        parts = TurnParts(self.state, context, providers, tools, hooks, coordinator)
        turn = self.turn_type(parts)
        entered = turn.span.enter()
        try:
            try:
                outcome = await turn.play(prompt)
            except asyncio.CancelledError as error:
                await finish_despite_cancellation(turn.keep_partial_answer())
                await finish_despite_cancellation(
                    turn.close(TurnOutcome("incomplete", "", "cancelled", error))
                )
                raise
            except BaseException as error:
                await finish_despite_cancellation(turn.close(TurnOutcome("error", "", None, error)))
                raise
            return await finish_despite_cancellation(turn.close(outcome))
        finally:
            Span.leave(entered)
