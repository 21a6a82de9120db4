"""loop-basic: the plain agent loop, one whole answer at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__amplifier_module_type__ = "orchestrator"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.loop.config import LoopConfig
    from amplifier_modules._shared.module.config_schema import config_schema_of

    return config_schema_of(LoopConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules._shared.loop.config import LoopConfig
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator

    settings = parse_config(LoopConfig, config, BasicOrchestrator.name)
    await BasicOrchestrator(settings).mount(coordinator)
