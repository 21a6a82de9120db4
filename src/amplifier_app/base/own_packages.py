"""The packages that this program consists of, and its version."""

from __future__ import annotations

from amplifier_app import __version__

MODULE_PACKAGES = ("amplifier_modules", "amplifier_extras")
"""The packages with bundled modules."""

WINGS = ("amplifier_batch", "amplifier_kit", "amplifier_extras", "amplifier_serve")
"""The packages on top, which the app never imports: it finds their commands and modules by entry points."""

OWN_PACKAGES = ("amplifier_support", "amplifier_core", "amplifier_modules", "amplifier_app", *WINGS)


def version_line() -> str:
    """Name and version of the program."""
    return f"amplifier {__version__}"
