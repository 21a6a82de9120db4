"""Interactive chat on a terminal: line editor, slash commands, several prompts in one session."""
