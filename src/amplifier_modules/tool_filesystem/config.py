"""Settings of tool-filesystem."""

from __future__ import annotations

from pydantic import Field

from amplifier_modules._shared.config import ModuleConfig

MODULE_ID = "tool-filesystem"


class FilesystemConfig(ModuleConfig):
    """Settings of tool-filesystem.

    Attributes:
        allowed_read_paths: Folders or files that may be read, absolute or relative to the working
            directory; `~` is expanded. By default the working directory.
        allowed_write_paths: The same for writing. `.git`, `.amplifier` and shell start-up files
            inside them stay refused unless a path here names them, as in `[".", ".git"]`.
        max_bytes: Most bytes of text one call gives the model.
        max_image_bytes: Most bytes of an image that is shown to the model. More than the default
            is over the 5 MB that some services take, counted as base64.
    """

    allowed_read_paths: list[str] | None = None
    allowed_write_paths: list[str] | None = None
    max_bytes: int = Field(default=100_000, ge=1000)
    max_image_bytes: int = Field(default=3_750_000, ge=1000)
