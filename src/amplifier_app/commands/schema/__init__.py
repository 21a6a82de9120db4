"""`amplifier schema`."""
