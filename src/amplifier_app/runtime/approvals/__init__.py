"""Which tool calls are allowed: by the mode of the session, by rules, or by the user."""
