"""hooks-shell: run the user's commands on events, and let them decide."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_shell.config import ShellConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration("hooks-shell", "amplifier_modules.hooks_shell.config:ShellConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: ShellConfig) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run the configured commands on their events; settings as in `ShellConfig`.

    Returns:
        A cleanup function that removes the hooks and kills what commands left running.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_core.events import ALL_EVENTS
    from amplifier_modules.hooks_shell.config import EVENTS, MODULE_ID
    from amplifier_modules.hooks_shell.hook import HOOKS, ShellHooks

    hooks = ShellHooks(coordinator, settings)
    hooks.listen(ALL_EVENTS)
    HOOKS.register(coordinator, hooks)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(EVENTS))
    return hooks.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce: patterns may match them."""
    from amplifier_modules.hooks_shell.hook import HOOKS

    hooks = HOOKS.of(coordinator)
    if hooks is not None:
        contributed = await coordinator.collect_contributions("observability.events")
        hooks.listen_to_contributed(contributed)
