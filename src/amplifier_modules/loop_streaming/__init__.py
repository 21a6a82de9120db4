"""loop-streaming: the agent loop that shows answers as they are generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules._shared.loop.config import LoopConfig

__amplifier_module_type__ = "orchestrator"

_config = ConfigDeclaration("loop-streaming", "amplifier_modules._shared.loop.config:LoopConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: LoopConfig) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator

    await StreamingOrchestrator(settings).mount(coordinator)
