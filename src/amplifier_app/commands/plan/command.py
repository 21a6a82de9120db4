"""`amplifier plan`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "plan",
    "amplifier_app.commands.plan",
    {
        "check": ("checking", "Check that everything in the plan loads, without asking a model."),
        "diff": ("comparing", "Show how two plans differ."),
        "explain": ("reading", "Show where a value is set and what it replaced."),
        "import": ("importing", "Convert a bundle and everything it includes to one plan."),
        "lock": ("locking", "Pin every module of the plan to an exact version."),
        "schema": ("schemas", "Print the JSON Schema of plans."),
        "show": ("reading", "Show the merged plan with secrets masked."),
    },
)
