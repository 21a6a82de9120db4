"""Explain a plan to its author: where a value was set, what a key means, what differs from another plan."""
