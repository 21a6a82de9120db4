"""Settings of hooks-shell."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import ModuleConfig, listed
from amplifier_modules._shared.process.sandbox import SandboxValue
from amplifier_support.text import cut_text

MODULE_ID = "hooks-shell"

COMPLETED = "shell_hook:completed"
FAILED = "shell_hook:failed"
EVENTS = (COMPLETED, FAILED)

UNLESS_NAMED = (*EVENTS, "content_block:delta", "thinking:delta", "provider:stream", "llm:stream_*")
"""Events a pattern does not mean: its own, which would never end, and those that come by the thousand."""

CLOSED = ("tool:pre",)
"""Events that are denied if the command fails, unless configured otherwise."""

_MAX_TITLE = 60


class ShellHook(ModuleConfig):
    """A command and when to run it.

    Attributes:
        event: Shell pattern for the event's name, or several.
        command: Command line for `sh`, or a program with its arguments.
        tool: Shell pattern for the tool's name, or several. If set, the command runs only on events
            of tool calls.
        name: Its name in messages; by default the command.
        timeout: Time limit in seconds; it is then killed with everything it started.
        output: Meaning of its output: `json`, an answer as in the README; `context`, text for the
            model; `ignore`, nothing. The exit code always counts.
        on_failure: What happens to the event if the command fails; by default `deny` for `tool:pre`
            and `allow` for others.
        environment: Variables to set for it.
        env_passthrough: Environment variables to pass although their names or values look like
            secrets; `*` matches any characters.
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
            raise ValueError("it contains a NUL character")
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
        """Its name in messages."""
        text = " ".join((self.name or listed(self.command)[0]).split())
        return cut_text(text, _MAX_TITLE)

    def means_event(self, event: str) -> bool:
        """Return True if it runs on events with this name."""
        patterns = listed(self.event)
        if event in patterns:
            return event not in EVENTS
        if any(fnmatchcase(event, pattern) for pattern in UNLESS_NAMED):
            return False
        return any(fnmatchcase(event, pattern) for pattern in patterns)

    def means_tool(self, tool: object) -> bool:
        """Return True if it runs on an event that names this tool, or None."""
        if self.tool is None:
            return True
        return isinstance(tool, str) and any(fnmatchcase(tool, p) for p in listed(self.tool))

    def refuses_on_failure(self, event: str) -> bool:
        """Return True if the event is denied if the command fails."""
        if self.on_failure is None:
            return event in CLOSED
        return self.on_failure == "deny"


class ShellConfig(ModuleConfig):
    """Settings of hooks-shell.

    Attributes:
        hooks: The commands; those of one event run in sequence, in this order.
        sandbox: What they may do, as `session.sandbox` of a plan, which is the default.
        priority: Order among the hooks of an event. Before approvals, so that the call approved is
            the one the command has changed.
    """

    hooks: list[ShellHook] = Field(default_factory=list[ShellHook])
    sandbox: SandboxValue = None
    priority: int = 50
