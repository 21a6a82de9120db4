"""Render a session: terminals, pipes and JSON."""
