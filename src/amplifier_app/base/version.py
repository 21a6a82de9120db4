"""The version of the program."""

from amplifier_app import __version__


def version_line() -> str:
    """Name and version of the program."""
    return f"amplifier {__version__}"
