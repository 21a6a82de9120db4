"""Records of a turn, gathered from the events of its session."""
