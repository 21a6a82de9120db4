"""hooks-approval: decides by rules which tool calls run, which are refused, and which are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__amplifier_module_type__ = "hook"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_approval.config import ApprovalConfig

    return config_schema_of(ApprovalConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> Callable[[], None]:
    """Decide on every `tool:pre`; settings as in `ApprovalConfig`.

    Returns:
        A function that stops doing so.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import TOOL_PRE
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_approval.config import MODULE_ID, ApprovalConfig
    from amplifier_modules.hooks_approval.hook import ApprovalHook

    settings = parse_config(ApprovalConfig, config, MODULE_ID)
    hook = ApprovalHook(coordinator, settings)
    return coordinator.hooks.register(
        TOOL_PRE, hook.on_tool, priority=settings.priority, name=MODULE_ID
    )
