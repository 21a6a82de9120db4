"""What happened in a turn, gathered from the events of its session."""
