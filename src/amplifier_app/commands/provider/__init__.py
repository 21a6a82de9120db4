"""`amplifier provider`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "provider",
    "amplifier_app.commands.provider",
    {
        "list": ("access:list_providers", "List providers and where each key comes from."),
        "test": ("access:request_short_answer", "Test a provider with a one-word request."),
        "models": ("access:models", "List the models a provider offers."),
        "prices": ("prices:prices", "List model prices, or fetch newer ones."),
        "forget": ("access:forget", "Remove the stored key of a provider."),
    },
)
