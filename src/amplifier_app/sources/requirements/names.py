"""Names, versions and files of requirements and of installed distributions."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from amplifier_app.base.installed import OURS, normalised

PREFERRED = ".preferred"
"""Subfolder of a folder of requirements, for the distributions whose version differs from the environment's."""

_METADATA = r"([A-Za-z0-9._]+)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info"


def distributions(folders: Iterable[str]) -> dict[str, str]:
    """Name → version of the distributions in these folders, from the names of their metadata."""
    versions: dict[str, str] = {}
    for folder in folders:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            # Not a folder, or missing: nothing is installed in it.
            continue
        for entry in entries:
            match = re.fullmatch(_METADATA, entry)
            if match and normalised(match[1]) not in OURS:
                versions.setdefault(normalised(match[1]), match[2].partition("+")[0])
    return versions


def recorded_files(metadata: Path) -> list[str]:
    """The files of a distribution, as the RECORD in its metadata folder lists them.

    Raises:
        OSError: It cannot be read.
    """
    record = metadata / "RECORD"
    with record.open(encoding="utf-8", errors="replace", newline="") as lines:
        return [row[0] for row in csv.reader(lines) if row]


def installed_files(metadata: Path, folder: Path) -> Iterator[Path]:
    """Those of the files of a distribution that are in `folder`, which it was installed to.

    Raises:
        OSError: Its RECORD cannot be read.
    """
    for name in recorded_files(metadata):
        file = Path(os.path.normpath(folder / name))
        if file.is_relative_to(folder) and file.is_file():
            yield file


def requirement_name(requirement: str) -> str:
    """The normalised name of the distribution in a requirement."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return normalised(match[1]) if match else ""


def preferred_in(folder: Path) -> tuple[Path, ...]:
    """The part of a folder of requirements that precedes the environment on `sys.path`, if it has one."""
    preferred = folder / PREFERRED
    return (preferred,) if preferred.is_dir() else ()


def separate(target: Path, present: Mapping[str, str]) -> None:
    """Move distributions that the environment has in another version to `PREFERRED`."""
    for name, version in distributions([str(target)]).items():
        if present.get(name, version) != version:
            _move_distribution(target, name, target / PREFERRED)


def _move_distribution(folder: Path, name: str, target: Path) -> None:
    """Move the files of one distribution, as listed in its RECORD, to another folder."""
    for info in folder.glob("*.dist-info"):
        if normalised(info.name.partition("-")[0]) != name:
            continue
        for file in installed_files(info, folder):
            place = target / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
        shutil.rmtree(info, ignore_errors=True)
