"""`amplifier module`."""
