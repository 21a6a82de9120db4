"""hooks-approval: allow, ask about or deny tool calls by rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_approval.config import ApprovalConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration(
    "hooks-approval", "amplifier_modules.hooks_approval.config:ApprovalConfig"
)
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: ApprovalConfig) -> Callable[[], None]:
    """Decide on every `tool:pre`; settings as in `ApprovalConfig`.

    Returns:
        A cleanup function that removes the hook.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_core.events import TOOL_PRE
    from amplifier_modules.hooks_approval.config import MODULE_ID
    from amplifier_modules.hooks_approval.hook import ApprovalHook
    from amplifier_modules.hooks_approval.modes import MODE_CHANGED

    hook = ApprovalHook(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: [MODE_CHANGED])
    return coordinator.hooks.register(
        TOOL_PRE, hook.on_tool, priority=settings.priority, name=MODULE_ID
    )
