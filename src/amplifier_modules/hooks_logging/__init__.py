"""hooks-logging: write the session's events to `events.jsonl`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amplifier_core.session_capabilities import ANNOUNCED_EVENTS, REDACT_EVENT, SECRET_VARIABLES
from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_logging.config import LoggingConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration("hooks-logging", "amplifier_modules.hooks_logging.config:LoggingConfig")
config_schema = _config.schema

logger = logging.getLogger(__name__)


@_config.parsed
async def mount(coordinator: Any, settings: LoggingConfig) -> Callable[[], None] | None:
    """Listen to every event the kernel names; settings as in `LoggingConfig`.

    Returns:
        A cleanup function that stops listening and closes the file; None if the session is not
        saved and no path is configured, so there is no file to write to.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_core.events import ALL_EVENTS
    from amplifier_modules.hooks_logging.config import MODULE_ID
    from amplifier_modules.hooks_logging.log import LOG, EventLog, log_path

    path = log_path(settings, coordinator)
    if path is None:
        logger.debug("%s: the session has no folder and no path is configured", MODULE_ID)
        return None
    log = EventLog(
        path,
        settings,
        session_id=coordinator.session_id,
        secret_names=SECRET_VARIABLES.of(coordinator) or (),
        redaction=lambda: REDACT_EVENT.of(coordinator),
    )
    log.listen(coordinator.hooks, ALL_EVENTS)
    LOG.register(coordinator, log)
    return log.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce: hooks cannot register for a wildcard."""
    from amplifier_modules.hooks_logging.log import LOG

    log = LOG.of(coordinator)
    if log is None:
        return
    contributed = await coordinator.collect_contributions("observability.events")
    announced = ANNOUNCED_EVENTS.of(coordinator)
    log.listen(coordinator.hooks, log.names([*contributed, announced]))
