"""What the bundled orchestrators share: a turn, its events, its tool calls and its outcomes."""
