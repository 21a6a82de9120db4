"""The module that hooks-otel mounts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from amplifier_extras.hooks_otel.config import MODULE_ID, OtelConfig, is_disabled
from amplifier_support.installation import install_command
from amplifier_support.session_capabilities import OFFLINE

logger = logging.getLogger(__package__)


async def mount(
    coordinator: Any, settings: OtelConfig
) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """Create spans for the session's events; settings as in `OtelConfig`.

    Returns:
        A function that ends what is open and sends the rest; None where nothing is to be sent.

    Raises:
        RuntimeError: The OpenTelemetry SDK is not installed.
    """
    if not settings.enabled:
        return None
    if is_disabled():
        logger.info("%s: OTEL_SDK_DISABLED is set; nothing is recorded", MODULE_ID)
        return None
    if settings.exporter == "otlp" and OFFLINE.of(coordinator):
        logger.info("%s: nothing is sent offline", MODULE_ID)
        return None
    try:
        from amplifier_extras.hooks_otel.telemetry import Telemetry
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise RuntimeError(
            f"{MODULE_ID} needs the OpenTelemetry SDK, which is not installed ({error.name} is "
            f"missing); install it with: {install_command('otel')}"
        ) from None
    telemetry = Telemetry(coordinator, settings)
    telemetry.listen()
    return telemetry.close
