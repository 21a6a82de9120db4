"""The base of the bundled orchestrators: a turn, its events, its tool calls and its outcomes."""
