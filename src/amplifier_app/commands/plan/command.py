"""`amplifier plan`: one module per command, imported when invoked."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "plan",
    {
        "check": "Check that everything in the plan loads, without asking a model.",
        "diff": "Show how two plans differ.",
        "explain": "Show where a value is set and what it replaced.",
        "import": "Convert a bundle and everything it includes to one plan.",
        "lock": "Pin every module of the plan to an exact version.",
        "schema": "Print the JSON Schema of plans.",
        "show": "Show the merged plan with secrets masked.",
    },
)
