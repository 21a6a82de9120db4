"""The environment and output of commands."""
