"""`amplifier tool`."""
