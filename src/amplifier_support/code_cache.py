"""The compiled code of the modules that commands import, in one file, so that a start opens one file instead of hundreds.

The file is stored next to the compiled files that Python keeps for a package. A module's code is taken from it
under the same condition as from those: its source is unchanged. Everything else is imported as usual; so is
everything where the file cannot be written.

The file also holds the source that each name means. That counts while the search path and its folders up to that
source are as they were, and no hook was added that may load it in another way. Otherwise Python finds the source.
"""

from __future__ import annotations

import marshal
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, spec_from_file_location
from itertools import takewhile
from types import CodeType

# Not typing's: importing it takes as long as starting the interpreter.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    State = tuple[int, int, int]
    """When a file was changed, in nanoseconds, its size and its inode."""
    Part = tuple[State | None, int, int]
    """The state of a source, and start and size of its code."""

_FEW_MODULES = 150
"""An interpreter that has imported more is not at its start: there is little left to import."""
_WORTH_SAVING = 40
"""Modules that must be missing before the file is written again."""
_MAX_MODULES = 2_000
_HEADER = 4
_MAX_INDEX = 10_000_000
_DAMAGED = (OSError, ValueError, EOFError, TypeError)


class CodeCache:
    """Finds modules in the file.

    Args:
        source: A source file of the package next to whose compiled files the file is stored.

    Attributes:
        file: The path of the file.
    """

    def __init__(self, source: str) -> None:
        compiled = cache_from_source(os.path.join(os.path.dirname(source), "modules.py"))
        self.file = compiled.removesuffix("pyc") + "bin"
        self._path = list(sys.path)
        self._hooks = list(sys.path_hooks)
        self._sources: dict[str, str] = {}
        self._parts: dict[str, Part] = {}

    def use(self) -> bool:
        """Find modules in the file from now on; return False if it is of no use to this process."""
        is_in_folder = _state(self._path[0] or ".") == _state(".")
        is_at_start = len(sys.modules) <= _FEW_MODULES and PathFinder in sys.meta_path
        # Otherwise the file would become a standard stream that was closed.
        has_streams = None not in (sys.stdin, sys.stdout, sys.stderr)
        is_usual = is_at_start and has_streams and not is_in_folder
        if "PYTHONPATH" in os.environ or not (is_usual and hasattr(os, "pread")):
            return False
        try:
            self._code = _Code(self.file)
            start = int.from_bytes(self._code.read(0, _HEADER), "little")
            index = marshal.loads(self._code.read(start, _MAX_INDEX))
            version, path, folders, sources, parts = index
            unchanged = {name for name, state in folders.items() if _state(name) == state}
        except _DAMAGED:
            return True
        if version == MAGIC_NUMBER:
            self._sources, self._parts, self._unchanged = sources, parts, unchanged
            searched: list[str] = path if path == self._path else []
            self._searched = set(takewhile(unchanged.__contains__, searched))
            sys.meta_path.insert(sys.meta_path.index(PathFinder), self)
        return True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, with its code from the file if its source is as it was."""
        if name not in self._sources:
            return None
        source = self._sources[name]
        parent = _search_folder(source)
        if path is None:
            is_known = parent in self._searched and sys.path == self._path
        else:
            is_known = parent in self._unchanged and path == [parent]
        if is_known and sys.path_hooks == self._hooks and self._is_current(source):
            loader = _Loader(name, source, self._code, self._parts[source])
            return spec_from_file_location(name, loader=loader)
        spec = PathFinder.find_spec(name, path, target)
        source = _source(spec)
        if spec is not None and self._is_current(source):
            spec.loader = _Loader(name, source, self._code, self._parts[source])
        return spec

    def new_content(self) -> bytes | None:
        """The file's content with the modules imported since; None if it is not worth writing."""
        if sys.dont_write_bytecode or not os.access(os.path.dirname(self.file), os.W_OK):
            return None
        imported = dict(self._imported())
        current = {source for source in self._parts if self._is_current(source)}
        missing = set(imported.values()) - current
        if min(len(missing), _MAX_MODULES - len(current)) < _WORTH_SAVING:
            return None
        parts: dict[str, Part] = {}
        code = bytearray(_HEADER)
        for source in [*current, *missing][:_MAX_MODULES]:
            # Before the code: a source that is changed meanwhile is in another state.
            state = _state(source)
            try:
                part = marshal.dumps(SourceFileLoader(source, source).get_code(source))
            except (*_DAMAGED, ImportError, SyntaxError):
                continue
            parts[source] = state, len(code), len(part)
            code += part
        code[:_HEADER] = len(code).to_bytes(_HEADER, "little")
        states = {folder: _state(folder) for folder in (*self._path, *map(_search_folder, parts))}
        names = (self._sources | imported).items()
        sources = {name: file for name, file in names if file in parts and self._means(name, file)}
        return b"".join((code, marshal.dumps((MAGIC_NUMBER, self._path, states, sources, parts))))

    def _is_current(self, source: str) -> bool:
        return source in self._parts and _state(source) == self._parts[source][0]

    def _imported(self) -> Iterator[tuple[str, str]]:
        """The modules of the search path that were imported in the usual way, and their sources."""
        folders = tuple(os.path.join(folder, "") for folder in self._path[1:])
        for name in list(sys.modules):
            try:
                # Any other way would import a module that waits for its first use.
                spec = object.__getattribute__(sys.modules[name], "__spec__")
            except (AttributeError, KeyError):
                continue
            if _source(spec).startswith(folders):
                yield name, _source(spec)

    def _means(self, name: str, source: str) -> bool:
        """Return True if Python finds that source of that name where it searches at its start."""
        path = [_search_folder(source)] if "." in name else self._path
        return _source(PathFinder.find_spec(name, path)) == source


class _Code:
    """The open file. Raises `OSError`."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._opened = os.fstat(self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Return what is at a place.

        Raises:
            OSError: It cannot be read.
        """
        # A module may have closed the descriptor, and it may be another file's by now.
        if not os.path.samestat(os.fstat(self._descriptor), self._opened):
            raise OSError("the file is no longer open")
        return os.pread(self._descriptor, size, start)


class _Loader(SourceFileLoader):
    """Takes a module's code from the file."""

    def __init__(self, name: str, source: str, code: _Code, part: Part) -> None:
        super().__init__(name, source)
        self._code = code
        self._place = part[1:]

    def get_code(self, fullname: str) -> CodeType | None:
        try:
            code = marshal.loads(self._code.read(*self._place))
        except _DAMAGED:
            code = None
        return code if isinstance(code, CodeType) else super().get_code(fullname)


def _source(spec: ModuleSpec | None) -> str:
    """The source of a module; empty if another loader may have another one, or change its code."""
    loader = getattr(spec, "loader", None)
    return loader.path if type(loader) is SourceFileLoader else ""


def _search_folder(source: str) -> str:
    """The folder in which the module of a source is found."""
    folder, name = os.path.split(source)
    return os.path.dirname(folder) if name == "__init__.py" else folder


def _state(path: str) -> State | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
