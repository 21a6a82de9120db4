"""`amplifier doctor`."""
