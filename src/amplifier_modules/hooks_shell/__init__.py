"""hooks-shell: runs commands of the user's on events, and lets them decide."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

__amplifier_module_type__ = "hook"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_shell.config import ShellConfig

    return config_schema_of(ShellConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run the configured commands on their events; settings as in `ShellConfig`.

    Returns:
        A function that stops doing so and ends what commands left running.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import ALL_EVENTS
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_shell.config import CAPABILITY, EVENTS, MODULE_ID, ShellConfig
    from amplifier_modules.hooks_shell.hook import ShellHooks

    settings = parse_config(ShellConfig, config, MODULE_ID)
    hooks = ShellHooks(coordinator, settings)
    hooks.listen(ALL_EVENTS)
    coordinator.register_capability(CAPABILITY, hooks)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(EVENTS))
    return hooks.close


async def on_session_ready(coordinator: Any) -> None:
    """Listen to what other modules announce: a pattern may mean their events as well."""
    from amplifier_modules.hooks_shell.config import CAPABILITY

    hooks = coordinator.get_capability(CAPABILITY)
    if hooks is not None:
        contributed = await coordinator.collect_contributions("observability.events")
        hooks.listen_to_contributed(contributed)
