"""The file of a session's conversation."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from amplifier_core.session_capabilities import SESSION_DIR, WORKING_DIR
from amplifier_modules.context_persistent.config import MODULE_ID, PersistentContextConfig

logger = logging.getLogger(__name__)

FILE_NAME = "context.jsonl"

_SESSION_ID = "{session_id}"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


def conversation_file(config: PersistentContextConfig, coordinator: Any) -> Path | None:
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
