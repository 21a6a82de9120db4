"""The entries of a plan's `scores`: functions and judges, whose files a project must have reviewed like its modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYTHON = "python:"
JUDGE = "judge:"

_THRESHOLDS = ("min", "max", "equals")


def is_check(score: Mapping[str, Any]) -> bool:
    """Return True if an entry of `scores` has a threshold, so that the outcome of a row depends on it."""
    return any(score.get(name) is not None for name in _THRESHOLDS)


def scorer_file(command: str, folder: Path) -> Path | None:
    """Return the file of `python:FILE.py:FUNCTION` or `judge:FILE`, absolute; None for any other scorer.

    Args:
        command: The `run` of a score.
        folder: The folder that the file is relative to.
    """
    if command.startswith(PYTHON):
        name = command.removeprefix(PYTHON).rpartition(":")[0]
        if not name.endswith(".py"):
            return None
    elif command.startswith(JUDGE):
        name = command.removeprefix(JUDGE)
    else:
        return None
    file = Path(os.path.abspath(folder / os.path.expanduser(name)))
    # A judge may also be the name of a profile.
    return file if command.startswith(PYTHON) or file.is_file() else None
