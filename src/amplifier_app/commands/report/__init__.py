"""`amplifier report`."""
