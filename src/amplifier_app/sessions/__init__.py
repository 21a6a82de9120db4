"""Saved sessions: append-only transcripts, one writer each, found from any directory."""
