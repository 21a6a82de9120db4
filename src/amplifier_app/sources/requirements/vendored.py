"""Requirements vendored in a module's own folder, for machines without a network.

my-tool/.dependencies/               the installed requirements
my-tool/.dependencies/made-for.json  the requirements, and the Python and machine they fit
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from amplifier_app.sources.requirements.names import distributions

FOLDER = ".dependencies"
NOTE = "made-for.json"


def this_machine() -> dict[str, str]:
    """Return the properties of the machine that installed packages depend on besides names and
    versions.
    """
    tag = sys.implementation.cache_tag or sys.implementation.name
    return {"python": tag, "platform": sys.platform, "machine": platform.machine()}


def describe(folder: Path, required: Iterable[str]) -> None:
    """Record what a folder of installed packages was made for.

    Args:
        folder: The folder.
        required: The requirements installed into it.

    Raises:
        OSError: It cannot be written.
    """
    note = {"requirements": sorted(required), **this_machine()}
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def vendored_in(root: Path | None) -> Path | None:
    """The folder of vendored requirements in a module's folder, if there is one."""
    folder = root / FOLDER if root is not None else None
    return folder if folder is not None and folder.is_dir() else None


def fits(folder: Path, required: Iterable[str], wanted: Mapping[str, str]) -> bool:
    """Return True if a folder of installed packages can be used here.

    Args:
        folder: The folder.
        required: The module's requirements.
        wanted: Name → the only acceptable version.
    """
    note = _read(folder)
    if {name: note.get(name) for name in this_machine()} != this_machine():
        return False
    if not set(required) <= set(note.get("requirements", ())):
        return False
    inside = distributions([str(folder)])
    return all(wanted.get(name, version) == version for name, version in inside.items())


def _read(folder: Path) -> dict[str, Any]:
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # Not written by us, or damaged: install again.
        return {}
    return note if isinstance(note, dict) else {}
