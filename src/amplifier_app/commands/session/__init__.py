"""`amplifier session`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "session",
    "amplifier_app.commands",
    {
        "list": ("session.listing:list_sessions", "List saved sessions."),
        "search": ("session.listing:search", "Search the text of all sessions."),
        "show": ("session.reading:show", "Show a session's conversation, or one tool call."),
        "diff": ("session.reading:diff", "Show where two sessions diverge."),
        "export": (
            "session.copying:export",
            "Export a session as Markdown, JSON, HTML, ATIF or a bundle.",
        ),
        "import": ("session.copying:import_sessions", "Import a bundle."),
        "resume": ("resume:resume", "Choose a saved session and continue it."),
        "fork": ("session.forking:fork", "Start a new session from a step of another one."),
        "replay": ("session.replaying:replay", "Show a session as it ran."),
        "cost": ("session.costs:cost", "Show what the parts of a session have cost."),
        "cache": (
            "session.costs:cache",
            "Show what kept requests from using the provider's cache.",
        ),
        "join": ("session.joining:join", "Show a running session as it goes on."),
        "stop": ("session.stopping:stop", "Stop a running session."),
        "approve": ("session.approving:approve", "Answer the questions that wait in a session."),
        "rename": ("session.listing:rename", "Change a session's title."),
        "delete": ("session.listing:delete", "Delete sessions and their sub-sessions."),
        "prune": ("session.listing:prune", "Delete old sessions."),
        "verify": (
            "session.verification:verify_sessions",
            "Check sessions for damage, and repair them.",
        ),
    },
)
