"""`amplifier trust`."""
