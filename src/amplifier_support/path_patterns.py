"""Patterns for paths: `*`, `?` and `[…]` match within one part of a path, `**` any number of parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

_WILD = frozenset("*?[")


def split_pattern(pattern: str) -> tuple[str, list[str]]:
    """Return the folder, links resolved, in which an absolute pattern matches, and its parts from the first wildcard."""
    parts = pattern.split("/")
    wild = next((n for n, part in enumerate(parts) if _WILD & set(part)), len(parts))
    return os.path.realpath("/".join(parts[:wild]) or "/"), parts[wild:]


def find_matches(pattern: str, limit: int) -> list[str] | None:
    """Find the files and folders that an absolute pattern matches, without what is in matching folders.

    Args:
        pattern: The pattern.
        limit: Entries to look at.

    Returns:
        None if there are more entries.
    """
    start, rest = split_pattern(pattern)
    if not set(rest) - {"**"}:
        return [start]
    pattern = "/".join([start, *rest])
    matches: list[str] = []
    looked_at = 0
    for place, folders, files in os.walk(start):
        looked_at += len(folders) + len(files)
        if looked_at > limit:
            return None
        matching = {name for name in (*folders, *files) if fits(os.path.join(place, name), pattern)}
        matches += [os.path.join(place, name) for name in sorted(matching)]
        depth = len(os.path.relpath(place, start).split("/")) if place != start else 0
        is_deep = "**" not in rest and depth + 1 >= len(rest)
        folders[:] = [] if is_deep else [name for name in folders if name not in matching]
    return matches


def fits(path: str, pattern: str) -> bool:
    """Return True if a pattern matches the whole path; both are relative, or both absolute."""
    parts = _parts(pattern)
    # Positions in `wanted` that the parts so far can reach. Backtracking could take exponential time.
    at = _skipped({0}, parts)
    for part in _parts(path):
        ahead: set[int] = set()
        for n in at:
            if n < len(parts) and parts[n] == "**":
                ahead.add(n)
            elif n < len(parts) and fnmatchcase(part, parts[n]):
                ahead.add(n + 1)
        at = _skipped(ahead, parts)
    return len(parts) in at


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _skipped(at: set[int], parts: Sequence[str]) -> set[int]:
    reached = set(at)
    for n in sorted(at):
        while n < len(parts) and parts[n] == "**":
            n += 1
            reached.add(n)
    return reached
