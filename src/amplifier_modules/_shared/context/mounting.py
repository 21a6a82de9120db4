"""Mounts a bundled context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_core.events import CONTEXT_POST_COMPACT, CONTEXT_PRE_COMPACT, PROVIDER_RESPONSE
from amplifier_modules._shared.context.manager import CompactingContext


async def mount_context(
    coordinator: Any, context: CompactingContext, module_id: str
) -> Callable[[], None]:
    """Mount `context`, announce its events, and pass it the usage that providers report.

    Returns:
        Cleanup: stop listening for usage.
    """
    await coordinator.mount("context", context)
    coordinator.register_contributor(
        "observability.events", module_id, lambda: [CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT]
    )
    return coordinator.hooks.register(
        PROVIDER_RESPONSE, context.on_provider_response, name=module_id
    )
