"""Settings of hooks-backup."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from amplifier_modules._shared.module.config import ModuleConfig, Published, ignored, several

MODULE_ID = "hooks-backup"
BACKUP_CREATED = "backup:created"
BACKUP_RESTORED = "backup:restored"
BACKUP_EVENTS = (BACKUP_CREATED, BACKUP_RESTORED)
"""Events this module emits in addition to the kernel's."""

FOLDER = "backups"
INDEX = "index.jsonl"


def _writing_tools() -> dict[str, list[str]]:
    """Tools that change files, with the input keys that name the files."""
    path = ["path", "file_path"]
    return {
        "write_file": path,
        "edit_file": path,
        "multi_edit": path,
        "create_file": path,
        "delete_file": path,
        "move_file": [*path, "source", "destination"],
        "apply_patch": path,
        "notebook_edit": [*path, "notebook_path"],
        "str_replace_based_edit_tool": path,
    }


class BackupConfig(ModuleConfig):
    """Settings of hooks-backup.

    Attributes:
        tools: Tools that change files, with the input keys that name the files, at any depth. A
            mapping here replaces the default one.
        commands: Tools that run shell commands, with the key of the command. Files it names and
            files already saved in the turn are checked. Empty disables this.
        paths: Folders or files to back up, absolute or relative to the working directory; `~` is
            expanded. By default the working directory.
        max_file_bytes: Largest file to back up, in bytes.
        max_bytes: Bytes of all copies in a session; the oldest turns are removed first.
        max_age_days: Turns older than this are removed when the session is used again.
        priority: Order among the hooks of a call, after those that change or deny it.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **several(
            "backup_dir format include_metadata compress",
            ignored("it backs up files for '/undo'; transcripts are saved with every session"),
        ),
    }

    tools: dict[str, list[str]] = Field(default_factory=_writing_tools)
    commands: dict[str, str] = Field(default_factory=lambda: {"bash": "command"})
    paths: list[str] | None = None
    max_file_bytes: int = Field(default=10_000_000, ge=1)
    max_bytes: int = Field(default=200_000_000, ge=1)
    max_age_days: float = Field(default=30, gt=0)
    priority: int = 95
