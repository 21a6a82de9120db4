"""Modules available without fetching: bundled, of installed distributions, in the user's folders.

Our own entry points are read directly from our `entry_points.txt`: importing `importlib.metadata` and
scanning every distribution takes thirty times as long, and a session uses seven or eight bundled
modules.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from amplifier_core.module_sources import ENTRY_POINT_GROUP, conventional_name, project_name
from amplifier_support.installation import find_distribution, find_entry_points
from amplifier_support.named_tuple import NamedTuple

DISTRIBUTION = "amplifier"

FOLDERS = "AMPLIFIER_MODULES"
"""The variable with the user's folders of modules, separated as in `PATH`."""

OURS = ("amplifier-core", DISTRIBUTION)
"""Distributions that are part of the running program, whatever version is required."""


class Installed(NamedTuple):
    """A module of an installed distribution.

    Attributes:
        module_id: Its id.
        entry_point: `"package:mount"`.
        distribution: The name of the distribution.
        version: Its version.
    """

    module_id: str
    entry_point: str
    distribution: str
    version: str


@cache
def bundled_modules() -> dict[str, Installed]:
    """The bundled modules, by id."""
    for folder in sys.path:
        for entry in _listing(folder or "."):
            match = re.fullmatch(rf"{DISTRIBUTION}-(\d[^-]*)\.dist-info", entry)
            if match:
                file = Path(folder, entry, "entry_points.txt")
                if file.is_file():
                    points = _group(file.read_text(encoding="utf-8"), ENTRY_POINT_GROUP)
                    return {
                        name: Installed(name, target, DISTRIBUTION, match[1])
                        for name, target in points.items()
                    }
    return {}


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        # A zip file or a missing folder on sys.path has no folder of ours.
        return []


def _group(text: str, group: str) -> dict[str, str]:
    """One section of an `entry_points.txt`, which is a plain INI file."""
    points: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            points[name.strip()] = target.strip()
    return points


def modules_on_path(module_id: str | None = None) -> list[Installed]:
    """The modules of all installed distributions except our own, in the order of `sys.path`."""
    modules = _modules_in_folders(tuple((folder, _change_time(folder)) for folder in sys.path))
    return [module for module in modules if module_id in (None, module.module_id)]


@lru_cache(maxsize=1)
def _modules_in_folders(folders: tuple[tuple[str, int], ...]) -> list[Installed]:
    """The modules found in folders as they are now; a plan may ask for each of its modules."""
    points = find_entry_points(ENTRY_POINT_GROUP)
    # Each name and version would be parsed from all metadata again.
    known = {
        dist: (dist.metadata["Name"], dist.metadata["Version"])
        for dist in {point.dist for point in points if point.dist is not None}
    }
    return [
        Installed(point.name, point.value, *known[point.dist])
        for point in points
        if point.dist is not None and normalised(known[point.dist][0]) != DISTRIBUTION
    ]


def _change_time(folder: str) -> int:
    """When something was last installed in a folder."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def list_modules(distribution: str) -> list[Installed] | None:
    """The modules of one distribution; None if it is not installed."""
    installed = find_distribution(distribution)
    if installed is None:
        return None
    return [
        Installed(point.name, point.value, installed.name, installed.version)
        for point in installed.entry_points.select(group=ENTRY_POINT_GROUP)
    ]


def modules_in_folders(environ: Mapping[str, str] | None = None) -> dict[str, Path]:
    """The projects `amplifier-module-<id>` in the folders of `AMPLIFIER_MODULES`, by id.

    Relative folders are ignored: they would be those of any project one works in.
    """
    listed = (os.environ if environ is None else environ).get(FOLDERS, "").split(os.pathsep)
    prefix = project_name("")
    modules: dict[str, Path] = {}
    for folder in filter(os.path.isabs, listed):
        for name in sorted(_listing(folder)):
            path = Path(folder, name)
            if name.startswith(prefix) and path.is_dir():
                modules.setdefault(name.removeprefix(prefix), path)
    return modules


def known_ids() -> set[str]:
    """The ids of all modules that are available without a source."""
    on_path = (module.module_id for module in modules_on_path())
    return {*bundled_modules(), *on_path, *modules_in_folders()}


def by_convention(module_id: str) -> str | None:
    """The entry point of `amplifier_module_<id>`, if such a package can be imported."""
    name = conventional_name(module_id)
    return f"{name}:mount" if find_spec(name) is not None else None


def normalised(name: str) -> str:
    """The normalised name of a distribution, for comparison."""
    return re.sub(r"[-_.]+", "-", name).lower()
