"""What hooks-approval mounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_core.events import TOOL_PRE
from amplifier_modules.hooks_approval.config import MODULE_ID, ApprovalConfig
from amplifier_modules.hooks_approval.hook import ApprovalHook
from amplifier_modules.hooks_approval.modes import MODE_CHANGED
from amplifier_support.session_capabilities import APPROVAL_POLICY


async def mount(coordinator: Any, settings: ApprovalConfig) -> Callable[[], None]:
    """Decide on every `tool:pre`; settings as in `ApprovalConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
    hook = ApprovalHook(coordinator, settings)
    APPROVAL_POLICY.register(coordinator, hook.decide)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: [MODE_CHANGED])
    return coordinator.hooks.register(
        TOOL_PRE, hook.on_tool, priority=settings.priority, name=MODULE_ID
    )
