"""Imports from a project's folders: only trusted files, byte for byte, and never byte code.

A path hook ensures that the bytes compiled from a covered file are the bytes that were hashed: a
file changed or added since is not imported. Byte code in `__pycache__` is neither read nor
written, as it would run instead of the source that a person reviewed.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from amplifier_app.trust.content import Content

_logger = logging.getLogger(__name__)

_guarded: list[Content] = []
_exempt: set[Path] = set()
"""Folders on `sys.path` before: the program's environment may be inside a project."""


def guard_imports(content: Content) -> None:
    """Let this process import from the project's folders only what is in `content`."""
    if not _guarded:
        sys.path_hooks.insert(0, _finder_for)
        _exempt.update(Path(os.path.realpath(path)) for path in (*sys.path, sys.prefix))
    _guarded[:] = [other for other in _guarded if other.folder != content.folder]
    _guarded.append(content)
    # Finders created before are not guarded. Creating all again is cheaper than checking their folders.
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def is_guarded(path: Path) -> bool:
    """Return True if imports of a file are guarded in this process; child processes are not guarded."""
    return bool(_owners(str(path)))


def _finder_for(path: str) -> _Finder:
    """The finder for a folder of a project.

    Raises:
        ImportError: It is not one, so Python must try the next hook.
    """
    if not os.path.isdir(path) or not _concerns(path):
        raise ImportError("not a folder of a project", path=path)
    # Source first, as it is what a person can review.
    return _Finder(path, (_Source, SOURCE_SUFFIXES), (_Extension, EXTENSION_SUFFIXES))


class _Finder(FileFinder):
    """Finds sources and extensions, but no byte code without source."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        # A package requested by the path of its `__init__.py`, which must come first.
        file = os.path.join(self.path, "__init__.py")
        if fullname == "__init__" and os.path.isfile(file):
            return spec_from_file_location(fullname, file, loader=_Source(fullname, file))
        spec = super().find_spec(fullname, target)
        if spec is None or not _only_covered(self.path) or _is_covered(spec):
            return spec
        # Not an error, as another folder on the path often has a module of the same name.
        where = spec.origin or next(iter(spec.submodule_search_locations or ()), self.path)
        _logger.warning(
            "not importing %s: it is next to trusted files of the project but was not trusted",
            where,
        )
        return None


class _Source(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if not _owners(path):
            return super().get_code(fullname)
        data = self.get_data(path)
        _check(path, data)
        return self.source_to_code(data, path)


class _Extension(ExtensionFileLoader):
    def create_module(self, spec: ModuleSpec) -> Any:
        if _owners(self.path):
            _check(self.path, Path(self.path).read_bytes())
        return super().create_module(spec)


def _concerns(folder: str) -> bool:
    """Return True if a folder belongs to a project, or is the parent of one that may be a package."""
    real = Path(os.path.realpath(folder))
    return bool(_owners(folder)) or any(
        real == root.parent for content in _guarded for root in content.roots
    )


def _only_covered(folder: str) -> bool:
    """Return True if a folder is not covered itself but contains something that is: a single-file module
    puts its folder first on `sys.path`."""
    real = Path(os.path.realpath(folder))
    return real not in _exempt and not _owners(folder)


def _is_covered(spec: ModuleSpec) -> bool:
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return any(_owners(place) for place in places)


def _owners(path: str) -> list[Content]:
    """The projects with a covered folder above a path, whether or not the path is covered."""
    real = Path(os.path.realpath(path))
    parents = (real, *real.parents)
    contents: list[Content] = []
    for content in _guarded:
        root = next((parent for parent in parents if parent in content.roots), None)
        if root is not None:
            inner = parents[: parents.index(root)]
            contents += [] if _exempt.intersection(inner) else [content]
    return contents


def _check(path: str, data: bytes) -> None:
    """
    Raises:
        ImportError: The file is not byte for byte the trusted one.
    """
    for content in _owners(path):
        entry = content.find_entry(Path(path))
        if entry is None:
            raise ImportError(
                f"{path} is not part of the trusted content of its project", path=path
            )
        if entry.digest != hashlib.sha256(data).hexdigest():
            raise ImportError(f"{path} was changed after the project was trusted", path=path)
