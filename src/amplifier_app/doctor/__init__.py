"""`amplifier doctor`: whether what a run needs is in order."""
