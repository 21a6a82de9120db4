"""Settings of hooks-status."""

from __future__ import annotations

from pydantic import Field

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "hooks-status"


class StatusConfig(ModuleConfig):
    """Settings of hooks-status.

    Attributes:
        time: Add date, time and time zone.
        directory: Add the working directory and the system.
        git: Add the branch and changed files, inside a repository.
        max_files: Changed files to list; the others are counted.
        git_timeout: Seconds git may take; then its part is skipped.
        priority: Order among the hooks of a request.
    """

    time: bool = True
    directory: bool = True
    git: bool = True
    max_files: int = Field(default=20, ge=0)
    git_timeout: float = Field(default=2, gt=0)
    priority: int = 50
