"""What hooks-redaction mounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_core.events import ALL_EVENTS
from amplifier_modules._shared.module.announced_events import announced_events
from amplifier_modules.hooks_redaction.config import RedactionConfig
from amplifier_modules.hooks_redaction.hook import HOOK, RedactionHook
from amplifier_support.session_capabilities import REDACT_EVENT


async def mount(coordinator: Any, settings: RedactionConfig) -> Callable[[], None]:
    """Redact the events the kernel names; settings as in `RedactionConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
    hook = RedactionHook(coordinator, settings)
    hook.listen([*ALL_EVENTS, "provider:stream", "session:config"])
    REDACT_EVENT.register(coordinator, hook.redacted)
    HOOK.register(coordinator, hook)
    return hook.close


async def on_session_ready(coordinator: Any) -> None:
    """Also redact the events other modules announce."""
    hook = HOOK.of(coordinator)
    if hook is not None:
        hook.listen(await announced_events(coordinator))
