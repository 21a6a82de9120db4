"""Settings of tool-bash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.published import Published, refused

MODULE_ID = "tool-bash"


class BashConfig(ModuleConfig):
    """Settings of tool-bash.

    Attributes:
        denied_commands: Commands that are refused, whatever case they are in: a text anywhere in
            the command line, or with `*` a pattern of the whole. A guard rail only: a command
            can be written in many ways.
        require_approval: Whether hooks that go by the tool's own word ask before a command.
            `hooks-approval` of this program goes by its rules.
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

    published: ClassVar[Mapping[str, Published]] = {
        "allowed_commands": refused(
            "commands are allowed by rules of hooks-approval: {action: allow, tool: bash, "
            "command: …} with 'default: deny'",
            [],
        ),
        "safety_profile": refused(
            "there are no profiles; set 'denied_commands', or use hooks-approval, which asks "
            "before every command",
            "unrestricted",
        ),
        "safety_overrides": refused("there are no profiles to override; set 'denied_commands'", {}),
        "max_concurrent": refused(
            "commands of one answer run at the same time; set 'parallel_tools: false' in the "
            "config of the orchestrator"
        ),
        "working_dir": refused(
            "commands start in the session's working directory, which hooks rely on; start "
            "amplifier there",
            ".",
        ),
    }

    denied_commands: list[str] = Field(default_factory=list[str])
    require_approval: bool = True
    timeout: float = Field(default=120, gt=0)
    max_timeout: float = Field(default=600, gt=0)
    max_output: int = Field(default=30_000, ge=1000)
    max_spill: int = Field(default=64 * 1024 * 1024, ge=0)
    keep_folder: bool = True
    max_background: int = Field(default=8, ge=0)
    allowed_paths: list[str] | None = None
    env_passthrough: list[str] = Field(default_factory=list[str])
