"""The Agent Client Protocol: the agent that an editor starts."""
