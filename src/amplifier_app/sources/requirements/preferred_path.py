"""The part of a folder of requirements that precedes the environment on sys.path."""

from __future__ import annotations

from pathlib import Path

PREFERRED = ".preferred"
"""Subfolder for the distributions whose version differs from the environment's."""


def preferred_in(folder: Path) -> tuple[Path, ...]:
    """The part of a folder of requirements that precedes the environment, if it has one."""
    preferred = folder / PREFERRED
    return (preferred,) if preferred.is_dir() else ()
