"""What a session may cost and what it has cost."""
