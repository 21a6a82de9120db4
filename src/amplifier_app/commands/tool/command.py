"""`amplifier tool`: the tools of a plan, without a model."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "tool",
    {
        "list": "List the tools of the plan.",
        "info": "Show what a tool does and the input it takes.",
        "invoke": "Run a tool with JSON input, under the plan's approval rules.",
    },
)
