"""Prompts to try in the working directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CODE = frozenset(
    (
        ".c",
        ".cpp",
        ".cs",
        ".go",
        ".java",
        ".js",
        ".kt",
        ".php",
        ".py",
        ".rb",
        ".rs",
        ".swift",
        ".ts",
    )
)
_TESTS = ("test", "tests", "spec", "__tests__")
_SKIPPED = frozenset(("node_modules", "vendor", "target", "dist", "build", "venv", "__pycache__"))
_MOST_ENTRIES = 2000
_DEPTH = 3


def suggestions(folder: Path) -> list[str]:
    """Three prompts that make sense for the files of a folder.

    Only names are read, and of a large tree only a part.
    """
    files = list(_files(folder))
    code = next((file for file in files if _is_code(file)), None)
    if not files:
        return [
            "Write a Python script that lists the largest files of a folder.",
            "Explain how to set up a Python project with tests.",
            "What can you do here?",
        ]
    first = "What does this project do, and where should I start reading?"
    if code is None:
        second = "Summarize the files in this folder."
    elif any(_is_test(file) for file in files):
        second = f"Which tests cover {code}?"
    else:
        second = f"Explain {code} step by step."
    if (folder / ".git").exists():
        third = "Review my uncommitted changes."
    else:
        third = "Which files here look unfinished, and why?"
    return [first, second, third]


def _files(folder: Path) -> Iterator[Path]:
    """Relative paths of visible files, those of each folder before those below it."""
    left = _MOST_ENTRIES
    for path, folders, files in os.walk(folder):
        here = Path(path).relative_to(folder)
        visible = sorted(one for one in folders if one not in _SKIPPED and one[0] != ".")
        folders[:] = visible if len(here.parts) < _DEPTH else []
        for name in sorted(files)[:left]:
            if name[0] != "." and name.isprintable():
                yield here / name
        left -= len(files) + len(folders)
        if left <= 0:
            return


def _is_code(file: Path) -> bool:
    return file.suffix in _CODE and not file.stem.startswith("_") and not _is_test(file)


def _is_test(file: Path) -> bool:
    in_tests = any(part in _TESTS for part in file.parts[:-1])
    return in_tests or file.stem.startswith("test_") or file.stem.endswith(("_test", ".test"))
