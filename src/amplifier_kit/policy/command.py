"""`amplifier policy`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "policy",
    "amplifier_kit.policy",
    {
        "test": (
            "rules:show_decision",
            "Show the decision on a tool call, and the rule that made it.",
        ),
        "replay": ("rules:replay_command", "Apply the rules to the tool calls of saved sessions."),
        "suggest": (
            "rules:suggest_command",
            "Print the rules that allow what a session did.",
        ),
    },
    help="Test the rules for tool calls.",
)
