"""hooks-redaction: keeps secrets out of logs, exports and what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__amplifier_module_type__ = "hook"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_redaction.config import RedactionConfig

    return config_schema_of(RedactionConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> Callable[[], None]:
    """Redact the events the kernel names; settings as in `RedactionConfig`.

    Returns:
        A function that stops doing so.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import ALL_EVENTS
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_redaction.config import CAPABILITY, MODULE_ID, RedactionConfig
    from amplifier_modules.hooks_redaction.hook import RedactionHook

    settings = parse_config(RedactionConfig, config, MODULE_ID)
    hook = RedactionHook(coordinator, settings)
    hook.listen([*ALL_EVENTS, "provider:stream", "session:config"])
    coordinator.register_capability(CAPABILITY, hook.redacted)
    coordinator.register_capability(f"{MODULE_ID}.hook", hook)
    return hook.close


async def on_session_ready(coordinator: Any) -> None:
    """Redact the events other modules announce as well: there is no wildcard to register for."""
    from amplifier_modules.hooks_redaction.config import MODULE_ID

    hook = coordinator.get_capability(f"{MODULE_ID}.hook")
    if hook is not None:
        hook.listen_to_contributed(await coordinator.collect_contributions("observability.events"))
