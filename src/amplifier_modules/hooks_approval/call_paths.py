"""The paths a tool call names, and whether they match a pattern."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from amplifier_core.session_capabilities import MentionResolver
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


def places_in(
    values: Mapping[str, Any], base: str, mentions: MentionResolver | None = None
) -> list[Place]:
    """The paths in a tool's input, each once, also inside lists and objects.

    For `@NAME:path`, these are the path as it is written and the file that `mentions` finds.

    Raises:
        ValueError: A path contains a NUL character.
    """
    found: list[Place] = []
    for key, value in values.items():
        for path in _paths_in(value, named=key.lower() in _KEYS):
            found.append(place(path, base))
            if path.startswith("@") and mentions is not None:
                file = mentions.resolve(path)
                found += [] if file is None else [place(str(file), base)]
    return list(dict.fromkeys(found))


def _paths_in(value: Any, *, named: bool) -> Iterator[str]:
    if isinstance(value, str):
        if named:
            yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _paths_in(item, named=named)
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            yield from _paths_in(item, named=str(key).lower() in _KEYS)


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
