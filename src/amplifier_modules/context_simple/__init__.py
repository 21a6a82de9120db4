"""context-simple: the conversation in memory, compacted for requests but never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.context.mounting import mount_context
from amplifier_modules._shared.module.declaration import ConfigDeclaration
from amplifier_modules.context_simple.config import MODULE_ID
from amplifier_modules.context_simple.manager import SimpleContextManager

if TYPE_CHECKING:
    from amplifier_core import ModuleCoordinator

__amplifier_module_type__ = "context"

_config = ConfigDeclaration(
    "context-simple", "amplifier_modules.context_simple.config:SimpleContextConfig"
)
config_schema = _config.schema


async def mount(
    coordinator: ModuleCoordinator, config: Mapping[str, Any] | None = None
) -> Callable[[], None]:
    """Mount a `SimpleContextManager` that learns from the usage providers report.

    Args:
        coordinator: Where it is mounted.
        config: See `config.SimpleContextConfig`.

    Returns:
        Cleanup: stop listening for usage.

    Raises:
        ValueError: A setting is unknown or out of range.
    """
    context = SimpleContextManager(config, hooks=coordinator.hooks, coordinator=coordinator)
    return await mount_context(coordinator, context, MODULE_ID)
