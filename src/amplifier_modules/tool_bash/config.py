"""Settings of tool-bash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    refused,
)
from amplifier_modules._shared.process.sandbox import SandboxValue

MODULE_ID = "tool-bash"


class BashConfig(ModuleConfig):
    """Settings of tool-bash.

    Attributes:
        denied_commands: Commands to refuse, ignoring case: text anywhere in the command line or,
            with `*`, a pattern for the whole line. Only a guard rail, as a command can be written
            in many ways.
        require_approval: The tool's attribute of that name, for hooks that read it.
            `hooks-approval` uses its own rules instead.
        timeout: Time limit in seconds when the model does not set one.
        max_timeout: Longest time limit the model may set, in seconds.
        max_output: Bytes of output shown to the model; longer output is cut in the middle.
        max_spill: Bytes of longer output to keep in a file.
        keep_folder: Start each command in the folder where the last one ended.
        max_background: Commands that may run in the background at once; 0 disables them and leaves
            out their tools.
        allowed_paths: Folders the model may choose as working directory, absolute or relative to
            the session's; `~` is expanded. By default the session's. A command itself can go
            anywhere the user can.
        sandbox: What commands may do, as `session.sandbox` of a plan, which is the default.
        env_passthrough: Environment variables to pass to commands although their names or values
            look like secrets; `*` matches any text.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "max_output_bytes": alias_for("max_output"),
        "allowed_commands": refused(
            "allow commands with rules of hooks-approval: {action: allow, tool: bash, "
            "command: …} with 'default: deny'",
            [],
        ),
        "safety_profile": refused(
            "profiles are not supported; set 'denied_commands', or use hooks-approval, which asks "
            "before every command",
            "unrestricted",
        ),
        "safety_overrides": refused("profiles are not supported; set 'denied_commands'", {}),
        "max_concurrent": refused(
            "commands of one response run in parallel; set 'parallel_tools: false' in the "
            "config of the orchestrator"
        ),
        "working_dir": refused(
            "commands start in the session's working directory, which hooks rely on; run "
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
    sandbox: SandboxValue = None
    env_passthrough: list[str] = Field(default_factory=list[str])
