"""The command-line program."""

__version__ = "0.1.0"
