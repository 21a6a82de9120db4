"""What a person or a program sees of a session: terminals, pipes and JSON."""
