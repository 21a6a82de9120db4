"""hooks-logging: writes the session's events to `events.jsonl`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_logging.config import LoggingConfig

    return config_schema_of(LoggingConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], None] | None:
    """Listen to every event the kernel names; settings as in `LoggingConfig`.

    Returns:
        A function that stops listening and closes the file; None in a session that is not saved
        and has no path configured, where there is nothing to write to.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import ALL_EVENTS
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_logging.config import CAPABILITY, MODULE_ID, LoggingConfig
    from amplifier_modules.hooks_logging.log import EventLog, log_path

    settings = parse_config(LoggingConfig, config, MODULE_ID)
    path = log_path(settings, coordinator)
    if path is None:
        logger.debug("%s: the session has no folder and no path is configured", MODULE_ID)
        return None
    log = EventLog(
        path,
        settings,
        session_id=coordinator.session_id,
        secret_names=coordinator.get_capability("secrets.variables") or (),
        redaction=lambda: coordinator.get_capability("redaction.event"),
    )
    log.listen(coordinator.hooks, ALL_EVENTS)
    coordinator.register_capability(CAPABILITY, log)
    return log.close


async def on_session_ready(coordinator: Any) -> None:
    """Listen to the events other modules announce as well: there is no wildcard to register for."""
    from amplifier_modules.hooks_logging.config import CAPABILITY

    log = coordinator.get_capability(CAPABILITY)
    if log is None:
        return
    contributed = await coordinator.collect_contributions("observability.events")
    announced = coordinator.get_capability("observability.events")
    log.listen(coordinator.hooks, log.names([*contributed, announced]))
