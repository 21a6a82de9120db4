"""The paths a tool call names, and whether they match a pattern."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from amplifier_support.path_patterns import fits

_PATH_KEYS = """
    path paths file files file_path file_paths filepath filename directory dir folder cwd
    working_directory working_dir source destination src dst from to old_path new_path target
    notebook_path
"""
_KEYS = frozenset(_PATH_KEYS.split())
_WILD = frozenset("*?[")


class Place(NamedTuple):
    """A path a call names: resolved, and as written, both absolute."""

    real: str
    written: str


def places_in(values: Mapping[str, Any], base: str) -> list[Place]:
    """The paths in a tool's input, each once, also inside lists and objects.

    Raises:
        ValueError: A path contains a NUL character.
    """
    found: list[Place] = []
    for key, value in values.items():
        _collect(value, base, found, named=key.lower() in _KEYS)
    return list(dict.fromkeys(found))


def _collect(value: Any, base: str, found: list[Place], *, named: bool) -> None:
    if isinstance(value, str):
        if named:
            found.append(place(value, base))
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _collect(item, base, found, named=named)
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            _collect(item, base, found, named=str(key).lower() in _KEYS)


def place(path: str, base: str) -> Place:
    """Resolve `path` from `base`, following links and `..`.

    Raises:
        ValueError: It contains a NUL character.
    """
    if "\0" in path:
        raise ValueError("a path contains a NUL character")
    written = os.path.join(base, path)
    return Place(os.path.realpath(written), os.path.normpath(written))


def matches(path: str, pattern: str, base: str, *, loosely: bool = False) -> bool:
    """Whether an absolute path matches a pattern.

    Args:
        path: The path.
        pattern: Relative to `base`, absolute, or starting with `~/`.
        base: The working directory.
        loosely: Ignore case, as some file systems do.
    """
    wanted = _real_start(os.path.join(base, os.path.expanduser(pattern)))
    if loosely:
        path, wanted = path.casefold(), wanted.casefold()
    return fits(path, wanted)


def _real_start(pattern: str) -> str:
    """Resolve links in the part of the pattern without wildcards, as in paths."""
    parts = pattern.split("/")
    wild = next((n for n, part in enumerate(parts) if _WILD & set(part)), len(parts))
    start = os.path.realpath("/".join(parts[:wild]) or "/")
    return "/".join([start, *parts[wild:]])
