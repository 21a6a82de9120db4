"""`amplifier run`: one prompt, or a chat."""
