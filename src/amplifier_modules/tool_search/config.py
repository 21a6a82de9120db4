"""Settings of tool-search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    refused,
)

MODULE_ID = "tool-search"


class SearchConfig(ModuleConfig):
    """Settings of tool-search.

    Attributes:
        allowed_read_paths: Folders or files that may be searched, absolute or relative to the
            working directory; `~` is expanded. By default the working directory.
        gitignore: Skip files ignored by `.gitignore`. `.git` is always skipped.
        max_results: Lines or files one call may return.
        max_line: Characters of a line to show.
        max_file_size: Bytes of the largest file to search.
        timeout: Time limit of a search, in seconds.
        engine: ripgrep, python, or auto: ripgrep if it is installed.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "allowed_paths": alias_for("allowed_read_paths"),
        "working_dir": refused(
            "relative paths start at the session's working directory, which hooks rely on; run "
            "amplifier there",
            ".",
        ),
        **dict.fromkeys(
            ("grep", "glob"),
            refused("both tools share their settings; set them at the top level", {}),
        ),
        "exclusions": refused("list files to skip in a '.gitignore' file", []),
        "default_limits": ignored("set 'max_results'"),
    }

    allowed_read_paths: list[str] | None = None
    gitignore: bool = True
    max_results: int = Field(default=200, ge=1)
    max_line: int = Field(default=400, ge=40)
    max_file_size: int = Field(default=10_000_000, ge=1)
    timeout: float = Field(default=30, gt=0)
    engine: Literal["auto", "ripgrep", "python"] = "auto"
