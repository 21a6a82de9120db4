"""Confirm what ripgrep reports: it opens files by name, and names can change during a search.

If a link replaces a folder at that moment, ripgrep reads a file outside the folder to search. So every
reported line is looked up again in the file of that name, opened without following links. Files without
those lines are left out.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections.abc import Iterable, Iterator

from amplifier_support.below import open_below

_ENCODINGS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_MARK = b"\xef\xbb\xbf"


class ReportedLines:
    """Numbers and contents of the lines that were reported of each file."""

    def __init__(self) -> None:
        self._files: dict[str, _Lines] = {}

    def add(self, path: str, number: int, line: bytes) -> None:
        """Add a line; those of a file come in order."""
        if path not in self._files:
            self._files[path] = _Lines()
        self._files[path].add(number, line)

    def missing_in(self, folder: int, paths: Iterable[str]) -> set[str]:
        """Those of `paths` that do not have their reported lines in the open folder."""
        return {path for path in paths if not self._files[path].is_in(folder, path)}


class _Lines:
    def __init__(self) -> None:
        self._numbers = array("Q")
        self._digest = hashlib.blake2b()

    def add(self, number: int, line: bytes) -> None:
        self._numbers.append(number)
        self._digest.update(_framed(line))

    def is_in(self, folder: int, path: str) -> bool:
        found = hashlib.blake2b()
        wanted = iter(self._numbers)
        try:
            with open(open_below(folder, path), "rb") as file:
                next_one = next(wanted, None)
                for number, line in enumerate(_decoded(file), 1):
                    if next_one is None:
                        break
                    if number == next_one:
                        found.update(_framed(line))
                        next_one = next(wanted, None)
        except OSError:
            return False
        return found.digest() == self._digest.digest()


def _framed(line: bytes) -> bytes:
    line = line.removesuffix(b"\n")
    return b"%d:" % len(line) + line


def _decoded(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file in UTF-8, as ripgrep reads them."""
    lines = iter(file)
    first = next(lines, b"")
    encoding = _ENCODINGS.get(first[:2])
    if encoding is None:
        yield first.removeprefix(_MARK)
        yield from lines
        return
    text = b"".join(itertools.chain([first[2:]], lines)).decode(encoding, "replace")
    yield from text.encode("utf-8", "replace").split(b"\n")


def files_missing_in(folder: int, paths: Iterable[str]) -> set[str]:
    """Those of `paths` that are not regular files in the open folder."""
    missing: set[str] = set()
    for path in paths:
        try:
            os.close(open_below(folder, path))
        except OSError:
            missing.add(path)
    return missing
