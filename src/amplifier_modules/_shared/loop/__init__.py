"""What the bundled orchestrators share: one turn, its events, its tool calls and its endings."""
