"""`amplifier provider`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "provider",
    "amplifier_app.commands.provider",
    {
        "list": ("keys", "List providers and where each key comes from."),
        "test": ("requests", "Test a provider with a one-word request."),
        "models": ("requests", "List the models a provider offers."),
        "prices": ("prices", "List model prices, or fetch newer ones."),
        "forget": ("keys", "Remove the stored key of a provider."),
    },
)
