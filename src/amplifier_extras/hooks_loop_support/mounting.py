"""What hooks-loop-support mounts."""

from __future__ import annotations

import logging
from typing import Any

from amplifier_extras.hooks_loop_support.config import MODULE_ID, LoopSupportConfig
from amplifier_extras.hooks_loop_support.loop import SupportedLoop
from amplifier_modules._shared.loop.budget import Budget, open_budget
from amplifier_modules._shared.loop.fallback import PROVIDER_FALLBACK, fallbacks_of
from amplifier_modules._shared.loop.limit_requests import BUDGET_REACHED
from amplifier_modules._shared.loop.orchestrator import LoopOrchestrator

logger = logging.getLogger(__name__)


async def mount(coordinator: Any, settings: LoopSupportConfig) -> None:
    """Mount a `SupportedLoop` in place of the orchestrator.

    Does nothing, with a warning in the log, without an orchestrator that needs it.

    Raises:
        ValueError: `session.budget` of the plan is not valid.
    """
    inner = coordinator.get("orchestrator")
    if inner is None or isinstance(inner, LoopOrchestrator):
        why = "the orchestrator applies them" if inner else "no orchestrator is mounted before it"
        logger.warning("%s does not apply budgets and fallbacks: %s", MODULE_ID, why)
        return
    budget = open_budget(coordinator) if settings.budget else Budget()
    if settings.budget:
        coordinator.register_contributor("session.stats", MODULE_ID, budget.stats)
    events = [BUDGET_REACHED, PROVIDER_FALLBACK]
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(events))
    names = fallbacks_of(coordinator) if settings.fallbacks else []
    await coordinator.mount("orchestrator", SupportedLoop(inner, coordinator, budget, names))
