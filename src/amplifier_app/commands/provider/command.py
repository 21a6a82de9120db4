"""`amplifier provider`: one module per command, imported when invoked."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "provider",
    {
        "list": "List providers and where each key comes from.",
        "test": "Test a provider with a one-word request.",
        "models": "List the models a provider offers.",
        "forget": "Remove the stored key of a provider.",
    },
)
