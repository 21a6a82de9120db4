"""hooks-backup: files as they were before tools changed them, and back again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__amplifier_module_type__ = "hook"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_backup.config import BackupConfig

    return config_schema_of(BackupConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> Callable[[], None]:
    """Keep copies at every `tool:pre`; settings as in `BackupConfig`.

    Registers the capabilities `backup.undo` and `backup.list`.

    Returns:
        A function that stops doing so.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_backup.config import MODULE_ID, BackupConfig
    from amplifier_modules.hooks_backup.event_data import BACKUP_EVENTS
    from amplifier_modules.hooks_backup.gate import Gate

    gate = Gate(coordinator, parse_config(BackupConfig, config, MODULE_ID))
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(BACKUP_EVENTS))
    gate.listen()
    return gate.close
