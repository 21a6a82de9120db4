"""An orchestrator of another author, within the budget of its session."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_extras.hooks_loop_support.config import MODULE_ID
from amplifier_extras.hooks_loop_support.turn import Turn
from amplifier_modules._shared.loop.budget import Budget
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.turn_end import OUT_OF_BUDGET
from amplifier_modules._shared.module.delegate import Delegate
from amplifier_support.fields import mapping_of

logger = logging.getLogger(__name__)


class SupportedLoop(Delegate):
    """Runs an orchestrator with providers and tools that count against the budget.

    Other attributes are those of the orchestrator.

    Args:
        inner: The orchestrator.
        coordinator: The coordinator of the session.
        budget: The budget of the session.
        fallbacks: Names of the providers to use while another is unavailable, in order.
    """

    def __init__(
        self, inner: Any, coordinator: Any, budget: Budget, fallbacks: Sequence[str]
    ) -> None:
        # With the orchestrator's signature, from which the session sees what it accepts.
        @functools.wraps(inner.execute)
        async def execute(**session: Any) -> Any:
            return await self._execute(session)

        super().__init__(
            inner,
            execute=execute,
            _coordinator=coordinator,
            _budget=budget,
            _fallbacks=fallbacks,
        )

    async def _execute(self, session: dict[str, Any]) -> Any:
        """Run one turn.

        Returns:
            The answer; if a limit ends the turn before there is one, "Budget reached: …".

        Raises:
            Exception: Any exception of the orchestrator, unless a limit is its cause.
        """
        turn = Turn(self._coordinator, self._budget, self._fallbacks, session)
        answer: Any = ""
        with self._budget.clock():
            if await turn.may_start():
                answer = await self._run(turn, session)
        if turn.reached is None or self._coordinator.cancellation.is_cancelled:
            return answer
        answer = answer or turn.answer
        await turn.channel.ask(
            "orchestrator:complete",
            {
                "orchestrator": _name_of(self._coordinator),
                "turn_count": turn.calls,
                "status": "success" if answer else "incomplete",
                "reason": OUT_OF_BUDGET,
                "budget": turn.reached._asdict(),
            },
        )
        return answer or str(turn.reached)

    async def _run(self, turn: Turn, session: dict[str, Any]) -> Any:
        """What the orchestrator returns; nothing if a limit made it raise."""

        exits: list[SystemExit] = []

        async def execute() -> Any:
            inputs = {**session, "providers": turn.providers, "tools": turn.tools}
            try:
                return await self._inner.execute(**inputs)
            # From a task of its own it would end the event loop.
            except SystemExit as error:
                exits.append(error)

        cancels = task_cancel_count()
        try:
            answer = await interruptible(execute(), turn)
            if exits:
                raise exits[0]
            return answer
        # Foreign code: whatever the limit made it raise, the limit is the cause.
        except BaseException as error:
            if not is_failure(error, cancels) or turn.reached is None:
                raise
            logger.debug("The orchestrator ended with %r", error, exc_info=True)
            return ""


def _name_of(coordinator: Any) -> str:
    """The module id of the orchestrator, as in the plan."""
    entry = mapping_of(coordinator.config.get("session")).get("orchestrator")
    return str(mapping_of(entry).get("module") or entry or MODULE_ID)
