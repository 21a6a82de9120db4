"""The base of the bundled loops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier_modules._shared.history import Readings
from amplifier_modules._shared.loop.budget import open_budget
from amplifier_modules._shared.loop.channel import Channel, TurnOutcome
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.exchange import CONTEXT_OVERFLOW, Room
from amplifier_modules._shared.loop.fallback import BUDGET_REACHED, PROVIDER_FALLBACK
from amplifier_modules._shared.loop.interrupt import finish_despite_cancellation
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.loop.steering import STEER_EVENTS, Steering
from amplifier_modules._shared.loop.streaming import AnswerFormat, complete, stream
from amplifier_modules._shared.loop.turn import Turn
from amplifier_modules._shared.module.spans import Span
from amplifier_support.session_capabilities import STEER


class LoopOrchestrator:
    """Runs turns: provider call, tool calls, and so on, until an answer without tool calls.

    Attributes:
        name: Module id; `orchestrator:complete` names it.
        config: The current settings.
        events: Names of the events it emits in addition to those that the kernel defines.
        steer: Queues a text for the running turn; see `Steering`.
    """

    name: ClassVar[str]
    events: ClassVar[tuple[str, ...]] = (
        *STEER_EVENTS,
        PROVIDER_FALLBACK,
        CONTEXT_OVERFLOW,
        BUDGET_REACHED,
    )
    turn_type: ClassVar[type[Turn]] = Turn

    def __init__(self, config: LoopConfig | None = None) -> None:
        self.config = config or LoopConfig()
        self._checker = InputChecker()
        self._readings = Readings()
        self.steer = Steering()
        self._room = Room()
        self._answer_format = AnswerFormat()
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

    async def ask(self, provider: Any, request: Any, channel: Channel, span: Span) -> Any:
        """Return the complete answer to `request`; emits events for its blocks."""
        how = stream if self.config.streaming else complete
        return await how(provider, request, channel, span)

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
        turn = self._new_turn(
            context=context,
            providers=providers,
            tools=tools,
            hooks=hooks,
            coordinator=coordinator,
        )
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

    def _new_turn(self, **session: Any) -> Turn:
        """A turn with the parts of a session, and with what this loop keeps between turns."""
        return self.turn_type(
            name=self.name,
            config=self.config,
            ask=self.ask,
            checker=self._checker,
            readings=self._readings,
            steering=self.steer,
            room=self._room,
            answer_format=self._answer_format,
            **session,
        )
