"""`amplifier profile`."""
