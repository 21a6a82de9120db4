"""The module that hooks-logging mounts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from amplifier_core.events import ALL_EVENTS
from amplifier_modules._shared.module.spans import announced_events
from amplifier_modules._shared.privacy import session_secrets
from amplifier_modules.hooks_logging.log import LOG, MODULE_ID, EventLog, LoggingConfig, log_path
from amplifier_support.session_capabilities import REDACT_EVENT

logger = logging.getLogger(__package__)


async def mount(coordinator: Any, settings: LoggingConfig) -> Callable[[], None] | None:
    """Listen to every event the kernel names; settings as in `LoggingConfig`.

    Returns:
        A cleanup function that stops listening and closes the file; None if the session is not
        saved and no path is configured, so there is no file to write to.
    """
    path = log_path(settings, coordinator)
    if path is None:
        logger.debug("%s: the session has no folder and no path is configured", MODULE_ID)
        return None
    log = EventLog(
        path,
        settings,
        session_id=coordinator.session_id,
        secrets=session_secrets(coordinator),
        redaction=lambda: REDACT_EVENT.of(coordinator),
    )
    log.listen(coordinator.hooks, ALL_EVENTS)
    LOG.register(coordinator, log)
    return log.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce."""
    log = LOG.of(coordinator)
    if log is not None:
        log.listen(coordinator.hooks, await announced_events(coordinator))
