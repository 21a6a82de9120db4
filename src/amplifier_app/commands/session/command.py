"""`amplifier session`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "session",
    "amplifier_app.commands.session",
    {
        "list": ("listing", "List saved sessions."),
        "search": ("listing", "Search the text of all sessions."),
        "show": ("reading", "Show a session's conversation, or one tool call."),
        "diff": ("comparing", "Show where two sessions diverge."),
        "export": ("copying", "Export a session as Markdown, JSON, HTML, ATIF or a bundle."),
        "import": ("copying", "Import a bundle."),
        "resume": ("amplifier_app.commands.resume:app", "Choose a saved session and continue it."),
        "fork": ("forking", "Start a new session from a step of another one."),
        "replay": ("replaying", "Show a session as it ran."),
        "cost": ("costs", "Show what the parts of a session have cost."),
        "cache": ("caching", "Show what kept requests from using the provider's cache."),
        "join": ("background", "Show a running session as it goes on."),
        "stop": ("background", "Stop a running session."),
        "approve": ("approving", "Answer the questions that wait in a session."),
        "rename": ("listing", "Change a session's title."),
        "delete": ("listing", "Delete sessions and their sub-sessions."),
        "prune": ("listing", "Delete old sessions."),
        "verify": ("verification", "Check sessions for damage, and repair them."),
    },
)
