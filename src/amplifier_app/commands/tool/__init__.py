"""`amplifier tool`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "tool",
    "amplifier_app.commands.tool",
    {
        "list": ("calls:list_tools", "List the tools of the plan."),
        "info": ("calls:info", "Show what a tool does and the input it takes."),
        "invoke": ("calls:invoke", "Run a tool with JSON input, under the plan's approval rules."),
    },
)
