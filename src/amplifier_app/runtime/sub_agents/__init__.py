"""Sub-agents: tasks of a session that sessions of their own work on."""
