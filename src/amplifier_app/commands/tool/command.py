"""`amplifier tool`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "tool",
    "amplifier_app.commands.tool",
    {
        "list": ("calls", "List the tools of the plan."),
        "info": ("calls", "Show what a tool does and the input it takes."),
        "invoke": ("calls", "Run a tool with JSON input, under the plan's approval rules."),
    },
)
