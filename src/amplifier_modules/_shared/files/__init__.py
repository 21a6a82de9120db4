"""Guarded file access."""
