"""`amplifier compare`."""
