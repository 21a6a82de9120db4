"""`amplifier session`."""
