"""What hooks-shell mounts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from amplifier_core.events import ALL_EVENTS
from amplifier_modules._shared.module.announced_events import announced_events
from amplifier_modules.hooks_shell.config import EVENTS, MODULE_ID, ShellConfig
from amplifier_modules.hooks_shell.hook import HOOKS, ShellHooks


async def mount(coordinator: Any, settings: ShellConfig) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run the configured commands on their events; settings as in `ShellConfig`.

    Returns:
        A cleanup function that removes the hooks and kills what commands left running.
    """
    hooks = ShellHooks(coordinator, settings)
    hooks.listen(ALL_EVENTS)
    HOOKS.register(coordinator, hooks)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(EVENTS))
    return hooks.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce: patterns may match them."""
    hooks = HOOKS.of(coordinator)
    if hooks is not None:
        hooks.listen(await announced_events(coordinator))
