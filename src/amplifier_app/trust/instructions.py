"""Instruction files of a project: text such as AGENTS.md and skills, outside its `.amplifier`.

Text selects no code, so trust in the folder suffices; later changes of the files need no new review.
"""

from __future__ import annotations

import os
from pathlib import Path

from amplifier_app.trust.store import TrustStore
from amplifier_support.project_folders import project_folders

NAMES = ("AGENTS.md", "CLAUDE.md")
_SKILLS = (".agents/skills", ".claude/skills")


def trusted_dir(working_dir: str) -> str | None:
    """The topmost folder, from the repository's root to the working directory, that the user trusts.

    None if there is none.

    Raises:
        ConfigError: A trust record is damaged, or others could have written it.
    """
    store = TrustStore()
    if not store.folder.is_dir():
        return None
    folders = project_folders(working_dir)
    return next((folder for folder in folders if store.record(Path(folder)) is not None), None)


def instruction_files(working_dir: str) -> list[Path]:
    """The instruction files from the repository's root to the working directory, one for each folder."""
    files = ([Path(folder, name) for name in NAMES] for folder in project_folders(working_dir))
    return [first for names in files if (first := next(filter(os.path.lexists, names), None))]


def instruction_sources(working_dir: str) -> list[Path]:
    """Everything that gives instructions: `instruction_files`, and the folders with skills."""
    folders = [Path(folder, name) for folder in project_folders(working_dir) for name in _SKILLS]
    return [*instruction_files(working_dir), *filter(os.path.isdir, folders)]
