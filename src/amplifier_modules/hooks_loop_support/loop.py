"""An orchestrator of another author, within the budget of its session."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from amplifier_modules._shared.loop.budget import Budget
from amplifier_modules._shared.loop.turn_end import OUT_OF_BUDGET
from amplifier_modules._shared.module.delegate import Delegate
from amplifier_modules.hooks_loop_support.config import MODULE_ID
from amplifier_modules.hooks_loop_support.turn import MeteredProvider, MeteredTool, Turn


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
        """Run one turn; the text of a turn that ends at a limit is "Budget reached: …".

        Raises:
            Exception: Any exception of the orchestrator, unless a limit is its cause.
        """
        turn = Turn(self._coordinator, self._budget, self._fallbacks, session)
        inputs = {
            **session,
            "providers": {
                name: MeteredProvider(provider, name, turn)
                for name, provider in session["providers"].items()
            },
            "tools": {name: MeteredTool(tool, turn) for name, tool in session["tools"].items()},
        }
        answer: Any = None
        with self._budget.clock():
            if await turn.may_start():
                try:
                    async with asyncio.timeout(self._budget.seconds_left()):
                        answer = await self._inner.execute(**inputs)
                # Foreign code: whatever the limit made it raise, the limit is the cause.
                except Exception:
                    if not turn.is_over():
                        raise
            if (reached := turn.reached) is None:
                return answer
        await turn.channel.ask(
            "orchestrator:complete",
            {
                "orchestrator": MODULE_ID,
                "turn_count": turn.calls,
                "status": "incomplete",
                "reason": OUT_OF_BUDGET,
                "budget": reached._asdict(),
            },
        )
        return str(reached)
