"""The saved side of a session: its plan, its project, and what is restored when it is resumed."""
