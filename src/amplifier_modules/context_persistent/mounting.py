"""What context-persistent mounts."""

from __future__ import annotations

from collections.abc import Callable

from amplifier_core import ModuleCoordinator
from amplifier_modules._shared.context.mounting import mount_context
from amplifier_modules.context_persistent.config import MODULE_ID, PersistentContextConfig
from amplifier_modules.context_persistent.conversation_file import conversation_file
from amplifier_modules.context_persistent.journal import Journal
from amplifier_modules.context_persistent.manager import PersistentContextManager


async def mount(
    coordinator: ModuleCoordinator, settings: PersistentContextConfig
) -> Callable[[], None]:
    """Mount a `PersistentContextManager` with the conversation of its file, if any.

    Args:
        coordinator: Where it is mounted.
        settings: See `config.PersistentContextConfig`.

    Returns:
        Cleanup: close the file.

    Raises:
        JournalError: The file cannot be read or written.
    """
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
