"""`amplifier resume`."""
