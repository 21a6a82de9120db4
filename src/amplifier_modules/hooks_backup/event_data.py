"""The events of this module, and helpers to read the data of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

BACKUP_CREATED = "backup:created"
BACKUP_RESTORED = "backup:restored"
BACKUP_EVENTS = (BACKUP_CREATED, BACKUP_RESTORED)
"""Events this module emits in addition to the kernel's."""


def mapping(data: Any) -> Mapping[str, Any]:
    """`data` if it is a mapping, otherwise an empty one."""
    return cast("Mapping[str, Any]", data) if isinstance(data, Mapping) else {}
