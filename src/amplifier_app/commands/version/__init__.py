"""`amplifier version`."""
