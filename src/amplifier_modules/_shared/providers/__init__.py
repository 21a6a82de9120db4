"""The base of the bundled providers."""
