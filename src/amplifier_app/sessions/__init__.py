"""Saved sessions: append-only transcripts with a single writer, found from any directory."""
