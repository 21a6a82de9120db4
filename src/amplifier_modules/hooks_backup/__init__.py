"""hooks-backup: save files before tools change them, and restore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_backup.config import BackupConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration("hooks-backup", "amplifier_modules.hooks_backup.config:BackupConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: BackupConfig) -> Callable[[], None]:
    """Keep copies at every `tool:pre`; settings as in `BackupConfig`.

    Registers the capabilities `backup.undo` and `backup.list`.

    Returns:
        A cleanup function that removes the hook.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_modules.hooks_backup.config import MODULE_ID
    from amplifier_modules.hooks_backup.event_data import BACKUP_EVENTS
    from amplifier_modules.hooks_backup.gate import Gate

    gate = Gate(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(BACKUP_EVENTS))
    gate.listen()
    return gate.close
