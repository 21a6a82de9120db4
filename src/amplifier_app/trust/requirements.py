"""Finds local requirements of a project's modules: they are run, so trust covers them.

A `pyproject.toml` can require local folders, archives and repositories. Their code runs when they
are built and when they are imported.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from amplifier_support.fields import mapping_of

_FILE_URL = re.compile(r"(?:git\+)?file:(?://[^/]*)?(/[^\s;#?@]*)")
_NAMED = re.compile(r"@\s*([./~][^\s;]*)")
_PATH = re.compile(r"(?:\.{0,2}|~)/|\.{1,2}$")


def local_requirements(module: Path) -> list[Path]:
    """The local files and folders that a module requires, directly or indirectly.

    Errors in a `pyproject.toml` are ignored here; installing the module reports them.

    Args:
        module: The module's folder; without a `pyproject.toml` it requires nothing.

    Returns:
        Absolute paths outside the folder.
    """
    found: dict[Path, None] = {}
    waiting = [module.resolve()]
    seen: set[Path] = set()
    while waiting:
        folder = waiting.pop()
        if folder in seen:
            continue
        seen.add(folder)
        for path in map(Path.resolve, _paths_named_in(folder)):
            if not path.is_relative_to(module.resolve()):
                found[path] = None
            waiting.append(path)
    return list(found)


def _paths_named_in(folder: Path) -> Iterator[Path]:
    project = _read(folder / "pyproject.toml")
    if not project:
        return
    for table in ("project", "build-system", "dependency-groups"):
        for _, text in _texts(project.get(table)):
            yield from (Path(unquote(path)) for path in _FILE_URL.findall(text))
            yield from (folder / os.path.expanduser(path) for path in _NAMED.findall(text))
    settings = mapping_of(mapping_of(project.get("tool")).get("uv"))
    for key, text in _texts(settings):
        if match := _FILE_URL.match(text):
            yield Path(unquote(match[1]))
        elif key in ("path", "find-links") or _PATH.match(text):
            yield folder / os.path.expanduser(text)
    members = mapping_of(settings.get("sources")).values()
    if any(mapping_of(member).get("workspace") for member in members):
        yield from _workspace_around(folder)


def _workspace_around(folder: Path) -> Iterator[Path]:
    """The root of the workspace that uv would find."""
    for parent in folder.parents:
        tool = mapping_of(_read(parent / "pyproject.toml").get("tool"))
        if "workspace" in mapping_of(tool.get("uv")):
            yield parent
            return


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string below a value, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
