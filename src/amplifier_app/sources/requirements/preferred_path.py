"""The part of a folder of requirements that precedes the environment on `sys.path`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from amplifier_app.base.installed import normalised
from amplifier_app.sources.requirements.names import distributions, installed_files

PREFERRED = ".preferred"
"""Subfolder for the distributions whose version differs from the environment's."""


def separate(target: Path, present: Mapping[str, str]) -> None:
    """Move distributions that the environment has in another version to `PREFERRED`."""
    for name, version in distributions([str(target)]).items():
        if present.get(name, version) != version:
            move_distribution(target, name, target / PREFERRED)


def move_distribution(folder: Path, name: str, target: Path) -> None:
    """Move the files of one distribution, as listed in its RECORD, to another folder."""
    for info in folder.glob("*.dist-info"):
        if normalised(info.name.partition("-")[0]) != name:
            continue
        for file in installed_files(info, folder):
            place = target / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
        shutil.rmtree(info, ignore_errors=True)


def preferred_in(folder: Path) -> tuple[Path, ...]:
    """The part of a folder of requirements that precedes the environment, if it has one."""
    preferred = folder / PREFERRED
    return (preferred,) if preferred.is_dir() else ()
