"""Settings that commands change."""
