"""The folders and files of a repository that concern an agent in it, and the names in files of Claude Code and the
programs that follow it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from amplifier_support.files import open_regular

EVENTS = {
    "PreToolUse": "tool:pre",
    "PostToolUse": "tool:post",
    "PostToolUseFailure": "tool:error",
    "UserPromptSubmit": "prompt:submit",
    "SessionStart": "session:start",
    "SessionEnd": "session:end",
    "PreCompact": "context:pre_compact",
    "Notification": "user:notification",
    "Stop": "turn:ending",
}
"""Event there → event here."""

TOOLS = {
    "bash": "Bash",
    "bash_output": "BashOutput",
    "bash_kill": "KillShell",
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "list_directory": "LS",
    "grep": "Grep",
    "glob": "Glob",
    "web_fetch": "WebFetch",
    "task": "Task",
    "todo": "TodoWrite",
    "skill": "Skill",
}
"""Tool here → tool there."""

HOOK_FILES = {"claude": ".claude/settings.json", "codex": ".codex/hooks.json"}
"""Program → the file with its hooks in a project."""


_MAX_SETTINGS = 1024 * 1024


def project_folders(working_dir: str) -> list[str]:
    """The folders from the repository's root to the working directory, in this order.

    Outside a repository, only the working directory. The home folder is not treated as a repository
    for the folders in it, nor is a folder in which everyone may create files, since anyone may own
    what is in it. If the working directory is such a folder, there are none.
    """
    here = os.path.realpath(working_dir)
    home = os.path.realpath(os.path.expanduser("~"))
    if is_shared(here):
        return []
    folders: list[str] = []
    folder = here
    while not is_shared(folder) and (folder != home or folder == here):
        folders.append(folder)
        if os.path.lexists(os.path.join(folder, ".git")):
            return folders[::-1]
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return [here]


def is_shared(folder: str) -> bool:
    """Return True if everyone may create files in the folder, or this is unknown."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return True


def find_hook_files(root: Path) -> list[Path]:
    """Return the files in a project that may have hooks of other agents, and not only their other settings."""
    files = (root / name for name in HOOK_FILES.values())
    return [file for file in files if os.path.lexists(file) and _may_have_hooks(file)]


def _may_have_hooks(file: Path) -> bool:
    try:
        with open(open_regular(file, os.O_RDONLY), "rb") as stream:
            data = stream.read(_MAX_SETTINGS)
    except OSError:
        return True  # Whoever reads it reports the error.
    # JSON may spell the key with escapes.
    return b"hooks" in data or b"\\" in data or len(data) == _MAX_SETTINGS
