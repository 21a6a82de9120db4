"""What context-persistent mounts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier_core import ModuleCoordinator
from amplifier_modules._shared.context.mounting import mount_context
from amplifier_modules.context_persistent.config import MODULE_ID, PersistentContextConfig
from amplifier_modules.context_persistent.journal import Journal
from amplifier_modules.context_persistent.manager import PersistentContextManager
from amplifier_support.session_capabilities import SESSION_DIR, WORKING_DIR

logger = logging.getLogger(__name__)

FILE_NAME = "context.jsonl"

_SESSION_ID = "{session_id}"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


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
    path = _conversation_file(settings, coordinator)
    journal = None if path is None else Journal(path)
    context = PersistentContextManager(
        settings, journal, hooks=coordinator.hooks, coordinator=coordinator
    )
    stop_listening = await mount_context(coordinator, context, MODULE_ID)

    def cleanup() -> None:
        stop_listening()
        context.close()

    return cleanup


def _conversation_file(config: PersistentContextConfig, coordinator: Any) -> Path | None:
    """The configured file, else one in the session's folder; None without either."""
    if config.path is not None and (
        _SESSION_ID in config.path or getattr(coordinator, "parent_id", None) is None
    ):
        session_id = _NOT_IN_NAMES.sub("_", str(coordinator.session_id))
        path = Path(config.path.replace(_SESSION_ID, session_id)).expanduser()
        working_dir = WORKING_DIR.of(coordinator)
        return Path(working_dir or Path.cwd()) / path
    # A child session has its own conversation and must not continue its parent's.
    folder = SESSION_DIR.of(coordinator)
    if folder is not None:
        return Path(folder) / FILE_NAME
    logger.info(
        "%s: this session is not saved and has no 'path'; its conversation is kept in memory only",
        MODULE_ID,
    )
    return None
