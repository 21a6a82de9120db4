"""What hooks-backup mounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_modules.hooks_backup.config import BACKUP_EVENTS, MODULE_ID, BackupConfig
from amplifier_modules.hooks_backup.handlers import BackupHandlers


async def mount(coordinator: Any, settings: BackupConfig) -> Callable[[], None]:
    """Keep copies at every `tool:pre`; settings as in `BackupConfig`.

    Registers the capabilities `backup.undo` and `backup.list`.

    Returns:
        A cleanup function that removes the hook.
    """
    handlers = BackupHandlers(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(BACKUP_EVENTS))
    handlers.listen()
    return handlers.close
