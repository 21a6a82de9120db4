"""`amplifier plan`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "plan",
    "amplifier_app.commands",
    {
        "check": (
            "run.dry_run:check",
            "Check that everything in the plan loads, without asking a model.",
        ),
        "diff": ("plan.reading:diff", "Show how two plans differ."),
        "explain": (
            "plan.reading:explain_command",
            "Show where a value is set and what it replaced.",
        ),
        "import": (
            "plan.importing:import_bundle",
            "Convert a bundle and everything it includes to one plan.",
        ),
        "lock": ("plan.locking:lock", "Pin every module of the plan to an exact version."),
        "schema": ("schema:plan", "Print the JSON Schema of plans."),
        "show": ("plan.reading:show", "Show the merged plan with secrets masked."),
    },
)
