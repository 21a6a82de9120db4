"""hooks-otel: report to an OpenTelemetry collector what a session does and how long it takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from amplifier_core.session_capabilities import OFFLINE
from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_otel.config import OtelConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration("hooks-otel", "amplifier_modules.hooks_otel.config:OtelConfig")
config_schema = _config.schema

logger = logging.getLogger(__name__)


@_config.parsed
async def mount(
    coordinator: Any, settings: OtelConfig
) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """Create spans for the session's events; settings as in `OtelConfig`.

    Returns:
        A function that ends what is open and sends the rest; None where nothing is to be sent.

    Raises:
        ValueError: The config is not valid.
        RuntimeError: The OpenTelemetry SDK is not installed.
    """
    from amplifier_modules.hooks_otel.config import MODULE_ID, is_disabled

    if not settings.enabled:
        return None
    if is_disabled():
        logger.info("%s: OTEL_SDK_DISABLED is set; nothing is recorded", MODULE_ID)
        return None
    if settings.exporter == "otlp" and OFFLINE.of(coordinator):
        logger.info("%s: nothing is sent offline", MODULE_ID)
        return None
    try:
        from amplifier_modules.hooks_otel.telemetry import Telemetry
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise RuntimeError(
            f"{MODULE_ID} needs the OpenTelemetry SDK, which is not installed ({error.name} is "
            "missing); install it with: pip install 'amplifier[otel]'"
        ) from None
    telemetry = Telemetry(coordinator, settings)
    telemetry.listen()
    return telemetry.close
