"""hooks-otel: tells an OpenTelemetry collector what a session does and how long it takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_otel.config import OtelConfig

    return config_schema_of(OtelConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """Make spans of the session's events; settings as in `OtelConfig`.

    Returns:
        A function that ends what is open and sends the rest; None where nothing is to be sent.

    Raises:
        ValueError: The config is not valid.
        RuntimeError: The OpenTelemetry SDK is not installed.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_otel.config import MODULE_ID, OtelConfig, is_disabled

    settings = parse_config(OtelConfig, config, MODULE_ID)
    if not settings.enabled:
        return None
    if is_disabled():
        logger.info("%s: OTEL_SDK_DISABLED is set; nothing is recorded", MODULE_ID)
        return None
    if settings.exporter == "otlp" and coordinator.get_capability("offline"):
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
