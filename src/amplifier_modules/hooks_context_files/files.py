"""Read the files and their includes, within limits.

An include (`amplifier_support.include_lines`) starts from the file that names it. Files are opened
through descriptors and never outside the folder they may come from, wherever a link leads
(`_shared.paths`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from amplifier_modules._shared.files.roots import PathError, PathGuard
from amplifier_modules.hooks_context_files.config import ContextFilesConfig
from amplifier_support.include_lines import include_lines
from amplifier_support.private_files import open_regular

MOST_FILES = 100
_MARKUP = 300
"""Most characters around the text of a file, not counting its path."""


class ContextFile(NamedTuple):
    """A file with its includes.

    Attributes:
        path: Its path.
        origin: `user`, `project` or `nested`.
        text: Its text, with includes in place.
    """

    path: str
    origin: str
    text: str


class _Cut(NamedTuple):
    """The text read from a file, and the file's real location."""

    real: str
    text: str


class Reader:
    """Read files until a limit is reached; each file is read once.

    Args:
        config: Names and limits.
        max_bytes: Limit for all files.

    Attributes:
        problems: Problems found, one line each.
    """

    def __init__(self, config: ContextFilesConfig, max_bytes: int) -> None:
        self._config = config
        self._left = max_bytes
        self._seen: set[str] = set()
        self.problems: list[str] = []

    def folder(self, folder: str, root: str, origin: str) -> ContextFile | None:
        """The first of the configured files in `folder`; it may include files from `root`."""
        guard = PathGuard([root], base=folder, writing=False, setting="")
        for name in self._config.files:
            path = os.path.join(folder, name)
            if not os.path.lexists(path):
                continue
            markup = _MARKUP + 2 * len(path)
            self._left -= markup
            text = self._text(guard, path, ())
            if text is not None and text.strip():
                return ContextFile(path, origin, text)
            self._left += markup
        return None

    def _text(self, guard: PathGuard, path: str, opened: Sequence[str]) -> str | None:
        """The text of a file with its includes; None if it is unavailable."""
        try:
            read = self._read(guard, path)
        except PathError:
            return self._problem(f"{path} leads out of its folder; skipping it")
        except OSError as error:
            return self._problem(f"cannot read {path}: {error.strerror or error}")
        if read is None:
            return None
        lines = [(line.text, line.target) for line in include_lines(read.text)]
        if len(opened) < self._config.max_depth:
            return "\n".join(
                line if target is None else self._include(guard, read.real, line, target, opened)
                for line, target in lines
            )
        if any(target is not None and self._may_include(target) for _, target in lines):
            self._problem(f"{path}: includes are nested more than {self._config.max_depth} deep")
        return "\n".join(line for line, _ in lines)

    def _include(
        self, guard: PathGuard, parent: str, line: str, target: str, opened: Sequence[str]
    ) -> str:
        if not self._may_include(target):
            return line
        path = os.path.join(os.path.dirname(parent), os.path.expanduser(target))
        text = self._text(guard, os.path.normpath(path), [*opened, parent])
        return line if text is None else text

    def _may_include(self, target: str) -> bool:
        name = os.path.basename(target)
        return any(fnmatchcase(name, pattern) for pattern in self._config.includes)

    def _read(self, guard: PathGuard, path: str) -> _Cut | None:
        """The text of a file; None if it was already read or the limit is reached.

        Raises:
            PathError: It is outside the guard's folder.
            OSError: It cannot be read.
        """
        with guard.locate(path) as place:
            if place.path in self._seen:
                return None
            descriptor = open_regular(place.name, os.O_RDONLY, dir_fd=place.dir_fd)
            with open(descriptor, "rb") as file:
                if self._left <= 0 or len(self._seen) >= MOST_FILES:
                    return self._problem(f"{path} skipped: the size limit is reached")
                size = os.fstat(descriptor).st_size
                data = file.read(self._left + 1)
            self._seen.add(place.path)
            text = self._decoded(path, data, size)
            self._left -= len(data)
            return _Cut(place.path, text)

    def _decoded(self, path: str, data: bytes, size: int) -> str:
        cut = len(data) > self._left
        text = data[: self._left].decode("utf-8-sig", "replace")
        text = text.replace("\r\n", "\n").strip("\n")
        if cut:
            self._problem(f"{path} is cut: only {self._left} of {size} bytes fit")
            text += f"\n[cut here; the file has {size} bytes, read it for the rest]"
        return text

    def _problem(self, message: str) -> None:
        self.problems.append(message)
