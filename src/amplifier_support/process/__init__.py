"""Supervised programs: nothing that they start outlives its time."""

INHERITED = 137
"""The number of the descriptor that a command may inherit; one that scripts do not use."""
