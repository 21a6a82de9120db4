"""Patterns for paths: `*`, `?` and `[…]` match within one part of a path, `**` any number of parts."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def fits(path: str, pattern: str) -> bool:
    """Whether a pattern matches the whole path; both are relative, or both absolute."""
    wanted = _parts(pattern)
    # Positions in `wanted` that the parts so far can reach. Backtracking could take exponential time.
    at = _skipped({0}, wanted)
    for part in _parts(path):
        ahead: set[int] = set()
        for n in at:
            if n < len(wanted) and wanted[n] == "**":
                ahead.add(n)
            elif n < len(wanted) and fnmatchcase(part, wanted[n]):
                ahead.add(n + 1)
        at = _skipped(ahead, wanted)
    return len(wanted) in at


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _skipped(at: set[int], wanted: Sequence[str]) -> set[int]:
    reached = set(at)
    for n in sorted(at):
        while n < len(wanted) and wanted[n] == "**":
            n += 1
            reached.add(n)
    return reached
