"""Names, versions and files of requirements and of installed distributions."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from amplifier_app.base.installed import OURS, normalised
from amplifier_app.sources.requirements.layout import Layout

_METADATA = r"([A-Za-z0-9._]+)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info"


def required_by(layout: Layout) -> list[str]:
    """The requirements of a module, except those that Amplifier itself provides."""
    return [text for text in layout.dependencies if requirement_name(text) not in OURS]


def distributions(folders: Iterable[str]) -> dict[str, str]:
    """Name → version of the distributions in these folders, from the names of their metadata."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            # Not a folder, or missing: nothing is installed in it.
            continue
        for entry in entries:
            match = re.fullmatch(_METADATA, entry)
            if match and normalised(match[1]) not in OURS:
                found.setdefault(normalised(match[1]), match[2].partition("+")[0])
    return found


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


def name_of(layout: Layout) -> str:
    """The name of a module in messages."""
    if layout.added:
        return layout.module_id or layout.package.stem
    if layout.distribution:
        return " ".join(layout.distribution)
    return str(layout.project_file or layout.folder)


def requirement_name(requirement: str) -> str:
    """The normalised name of the distribution in a requirement."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return normalised(match[1]) if match else ""
