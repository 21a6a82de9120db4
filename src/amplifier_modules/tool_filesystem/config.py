"""Settings of tool-filesystem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from amplifier_modules._shared.module.config import ModuleConfig, Published, refused

MODULE_ID = "tool-filesystem"


class FilesystemConfig(ModuleConfig):
    """Settings of tool-filesystem.

    Attributes:
        allowed_read_paths: Folders or files that may be read, absolute or relative to the working
            directory; `~` is expanded. By default the working directory.
        allowed_write_paths: The same for writing. `.git`, `.amplifier` and shell start-up files
            inside them are refused unless a path here names them, as in `[".", ".git"]`.
        denied_write_paths: Folders or files that may not be written, even inside
            `allowed_write_paths`.
        max_bytes: Bytes of text one call may return.
        max_image_bytes: Bytes of the largest image shown to the model. The default is 5 MB as
            base64, the limit of some services.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "working_dir": refused(
            "relative paths start at the session's working directory, which hooks rely on; run "
            "amplifier there",
            ".",
        ),
    }

    allowed_read_paths: list[str] | None = None
    allowed_write_paths: list[str] | None = None
    denied_write_paths: list[str] = Field(default_factory=list[str])
    max_bytes: int = Field(default=100_000, ge=1000)
    max_image_bytes: int = Field(default=3_750_000, ge=1000)
