"""`amplifier init`."""
