"""`amplifier policy`: one module per command, imported when invoked."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "policy",
    {
        "test": "Show the decision on a tool call, and the rule that made it.",
        "replay": "Apply the rules to the tool calls of saved sessions.",
        "suggest": "Print the rules that allow what a session did.",
    },
    where="amplifier_kit.policy.{}",
    help="Test the rules for tool calls.",
)
