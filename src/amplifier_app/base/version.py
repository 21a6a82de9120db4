"""The version of the program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_line() -> str:
    """Name and version of the installed program."""
    try:
        return f"amplifier {version('amplifier')}"
    except PackageNotFoundError:  # run from source that was never installed
        return "amplifier (version unknown: not installed)"
