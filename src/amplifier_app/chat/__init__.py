"""The conversation at a terminal: line editor, slash commands, several turns on one session."""
