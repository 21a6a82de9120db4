"""`amplifier session`: one module per command, imported when invoked."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "session",
    {
        "list": "List saved sessions.",
        "search": "Search the text of all sessions.",
        "show": "Show a session's conversation, or one tool call.",
        "diff": "Show where two sessions diverge.",
        "export": "Export a session as Markdown, JSON, HTML, ATIF or a bundle.",
        "import": "Import a bundle.",
        "resume": "Choose a saved session and continue it.",
        "fork": "Start a new session from a step of another one.",
        "replay": "Show a session as it ran.",
        "cost": "Show what the parts of a session have cost.",
        "rename": "Change a session's title.",
        "delete": "Delete sessions and their sub-sessions.",
        "prune": "Delete old sessions.",
        "verify": "Check sessions for damage, and repair them.",
    },
)
