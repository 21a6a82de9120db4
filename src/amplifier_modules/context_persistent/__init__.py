"""context-persistent: the whole conversation in a file, which is what a resumed session goes by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amplifier_core import ModuleCoordinator

__amplifier_module_type__ = "context"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.context_persistent.config import PersistentContextConfig

    return config_schema_of(PersistentContextConfig)


async def mount(
    coordinator: ModuleCoordinator, config: Mapping[str, Any] | None = None
) -> Callable[[], None]:
    """Mount a `PersistentContextManager` with the conversation its file holds, if it has one.

    Args:
        coordinator: Where it is mounted.
        config: See `config.PersistentContextConfig`.

    Returns:
        Cleanup: let go of the file.

    Raises:
        ValueError: A setting is unknown or out of range.
        JournalError: The file cannot be used.
    """
    from amplifier_modules._shared.context.mounting import mount_context
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.context_persistent.config import MODULE_ID, PersistentContextConfig
    from amplifier_modules.context_persistent.journal import Journal
    from amplifier_modules.context_persistent.manager import PersistentContextManager
    from amplifier_modules.context_persistent.place import conversation_file

    settings = parse_config(PersistentContextConfig, config, MODULE_ID)
    path = conversation_file(settings, coordinator)
    journal = None if path is None else Journal(path)
    context = PersistentContextManager(
        settings, journal, hooks=coordinator.hooks, coordinator=coordinator
    )
    stop_listening = await mount_context(coordinator, context, MODULE_ID)

    def cleanup() -> None:
        stop_listening()
        context.close()

    return cleanup
