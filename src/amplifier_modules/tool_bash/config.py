"""Settings of tool-bash."""

from __future__ import annotations

from pydantic import Field

from amplifier_modules._shared.config import ModuleConfig

MODULE_ID = "tool-bash"


class BashConfig(ModuleConfig):
    """Settings of tool-bash.

    Attributes:
        timeout: Seconds a command may take when the model asks for nothing else.
        max_timeout: Most seconds the model may ask for.
        max_output: Bytes of output shown to the model; what is over is cut in the middle.
        max_spill: Bytes of output kept in a file when some was cut.
        keep_folder: Whether the next command begins in the folder the last one changed to.
        max_background: Commands that may run in the background at a time; 0 leaves out all that
            has to do with them.
        allowed_paths: Folders the model may choose as working directory, absolute or relative to
            the session's; `~` is expanded. By default the session's. A command itself can go
            anywhere the user can.
        env_passthrough: Environment variables commands get although their names or values look
            like secrets; `*` stands for any characters.
    """

    timeout: float = Field(default=120, gt=0)
    max_timeout: float = Field(default=600, gt=0)
    max_output: int = Field(default=30_000, ge=1000)
    max_spill: int = Field(default=64 * 1024 * 1024, ge=0)
    keep_folder: bool = True
    max_background: int = Field(default=8, ge=0)
    allowed_paths: list[str] | None = None
    env_passthrough: list[str] = Field(default_factory=list[str])
