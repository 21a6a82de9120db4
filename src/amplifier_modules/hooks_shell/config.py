"""Settings of hooks-shell."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "hooks-shell"
CAPABILITY = "hooks-shell.hooks"

COMPLETED = "shell_hook:completed"
FAILED = "shell_hook:failed"
EVENTS = (COMPLETED, FAILED)

UNLESS_NAMED = (*EVENTS, "content_block:delta", "thinking:delta", "provider:stream", "llm:stream_*")
"""Events a pattern does not mean: its own, which would never end, and those that come by the thousand."""

CLOSED = ("tool:pre",)
"""Events on which a command that fails refuses, unless it says otherwise."""

_LONGEST_TITLE = 60


class ShellHook(ModuleConfig):
    """A command and when to run it.

    Attributes:
        event: Shell pattern of the event's name, or several.
        command: What to run: a line for `sh`, or a program with its arguments.
        tool: Shell pattern of the tool's name, or several. Given, the command runs only on events
            of tool calls.
        name: How it is called in messages; by default by its command.
        timeout: Seconds until it is killed with all it has started.
        output: What its output is: `json`, an answer as the README has it; `context`, text for the
            model; `ignore`, nothing. Its exit code counts in any case.
        on_failure: What becomes of the event when the command fails; by default `deny` for
            `tool:pre` and `allow` for others.
        environment: Variables to set for it.
        env_passthrough: Environment variables it gets although their names or values look like
            secrets; `*` stands for any characters.
    """

    event: str | list[str]
    command: str | list[str]
    tool: str | list[str] | None = None
    name: str | None = None
    timeout: float = Field(default=60, gt=0, allow_inf_nan=False)
    output: Literal["json", "context", "ignore"] = "json"
    on_failure: Literal["allow", "deny"] | None = None
    environment: dict[str, str] = Field(default_factory=dict[str, str])
    env_passthrough: list[str] = Field(default_factory=list[str])

    @field_validator("event", "command", "tool")
    @classmethod
    def _has_text(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and (not value or not listed(value)[0].strip()):
            raise ValueError("it is empty")
        if any("\0" in part for part in listed(value)):
            raise ValueError("it has a NUL character")
        return value

    @field_validator("environment")
    @classmethod
    def _are_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"{name!r} is not an environment variable")
        return value

    @property
    def title(self) -> str:
        """How it is called in messages."""
        text = " ".join((self.name or listed(self.command)[0]).split())
        return text if len(text) <= _LONGEST_TITLE else f"{text[:_LONGEST_TITLE]}…"

    def means_event(self, event: str) -> bool:
        """Whether it is to run on events of this name."""
        patterns = listed(self.event)
        if event in patterns:
            return event not in EVENTS
        if any(fnmatchcase(event, pattern) for pattern in UNLESS_NAMED):
            return False
        return any(fnmatchcase(event, pattern) for pattern in patterns)

    def means_tool(self, tool: object) -> bool:
        """Whether it is to run on an event that names this tool, or None."""
        if self.tool is None:
            return True
        return isinstance(tool, str) and any(fnmatchcase(tool, p) for p in listed(self.tool))

    def refuses_on_failure(self, event: str) -> bool:
        """Whether the event is refused when the command fails."""
        if self.on_failure is None:
            return event in CLOSED
        return self.on_failure == "deny"


class ShellConfig(ModuleConfig):
    """Settings of hooks-shell.

    Attributes:
        hooks: The commands; those of one event run one after the other, in this order.
        priority: Place among the hooks of an event. In front of approvals, so that what is
            approved is what a command has made of the call.
    """

    hooks: list[ShellHook] = Field(default_factory=list[ShellHook])
    priority: int = 50


def listed(value: str | list[str] | None) -> list[str]:
    """Something given as one or several."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value
