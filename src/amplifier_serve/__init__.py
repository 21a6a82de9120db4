"""Wing: plans served to editors and other agents."""
