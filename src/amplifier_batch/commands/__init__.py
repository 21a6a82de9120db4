"""`amplifier batch`."""
