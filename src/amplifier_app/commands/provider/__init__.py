"""`amplifier provider`."""
