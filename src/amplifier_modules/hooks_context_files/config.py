"""Settings of hooks-context-files."""

from __future__ import annotations

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "hooks-context-files"
LOADED = "context_files:loaded"
"""Event: files were given to the model."""


class ContextFilesConfig(ModuleConfig):
    """Settings of hooks-context-files.

    Attributes:
        files: Names to look for. In each folder the first one found is used.
        user: Read them in the user's own settings folder.
        project: Read them from the repository's root down to the working directory.
        nested: Also read them in other folders of it, once a tool names a path there.
        includes: Shell patterns for the names of files that an `@path` line may include.
        max_depth: Maximum depth of nested includes; 0 disables includes.
        max_bytes: Bytes of all files together; the rest is cut, with a note.
        priority: Order among the hooks of a prompt.
    """

    files: list[str] = Field(default_factory=lambda: ["AGENTS.md", "CLAUDE.md"], min_length=1)
    user: bool = True
    project: bool = True
    nested: bool = True
    includes: list[str] = Field(default_factory=lambda: ["*.md", "*.mdc", "*.rst", "*.txt"])
    max_depth: int = Field(default=5, ge=0, le=20)
    max_bytes: int = Field(default=65_536, ge=1024)
    priority: int = 50

    @field_validator("files")
    @classmethod
    def _are_names(cls, files: list[str]) -> list[str]:
        for name in files:
            if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
                raise ValueError(f"{name!r} is not the name of a file")
        return files
