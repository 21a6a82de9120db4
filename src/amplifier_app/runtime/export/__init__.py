"""Saved conversations as text, Markdown, HTML and data for other programs."""
