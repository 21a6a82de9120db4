"""`amplifier plan`."""
