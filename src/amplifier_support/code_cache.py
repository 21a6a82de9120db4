"""The compiled code of the modules that commands import, in one file, so that a start opens one file instead of hundreds.

The file lies beside the compiled files that Python keeps for a package. A module comes from it under the same
condition as from those: its source is as it was. Everything else is imported as usual; so is everything where
the file cannot be written.
"""

from __future__ import annotations

import marshal
import os
import sys
from binascii import crc32
from importlib.machinery import ExtensionFileLoader, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, spec_from_file_location
from types import CodeType

# Not typing's: importing it takes as long as starting the interpreter.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    State = tuple[int, int]
    """When a file was changed, in nanoseconds, and its size."""
    Module = tuple[str, bool, State | None, int, int]
    """Its file, whether it is a package, the state of the file, and start and size of its code."""

_FEW_MODULES = 150
"""An interpreter that has imported more is not at its start: there is little left to import."""
_WORTH_SAVING = 40
"""Modules that must be missing before the file is written again."""
_MAX_MODULES = 2_000
_HEADER = 8
_MAX_INDEX = 10_000_000
_DAMAGED = (OSError, ValueError, EOFError, TypeError)


class CodeCache:
    """Finds modules in the file.

    There is a file for each search path of modules, as its order decides which module a name means.

    Args:
        source: A source file of the package that has the file beside its compiled ones.

    Attributes:
        file: The path of the file.
    """

    def __init__(self, source: str) -> None:
        self._path = list(sys.path)
        name = f"modules-{crc32(repr(self._path).encode()):08x}.py"
        compiled = cache_from_source(os.path.join(os.path.dirname(source), name))
        self.file = compiled.removesuffix("pyc") + "bin"
        self._before = frozenset(sys.modules)
        self._modules: dict[str, Module] = {}
        self._code = _Code(-1)

    def use(self) -> bool:
        """Find modules in the file from now on; return False if it is of no use to this process."""
        is_usual = "PYTHONPATH" not in os.environ and self._path[0] != _working_folder()
        is_at_start = len(self._before) <= _FEW_MODULES and PathFinder in sys.meta_path
        if not (is_usual and is_at_start and hasattr(os, "pread")):
            return False
        try:
            self._code = _Code(os.open(self.file, os.O_RDONLY))
            state, modules = self._code.read_index()
        except _DAMAGED:
            return True
        if state == self._state():
            self._modules = modules
            sys.meta_path.insert(sys.meta_path.index(PathFinder), self)
        return True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module if it is in the file and its source is as it was."""
        if name not in self._modules:
            return None
        origin, is_package, state, start, size = self._modules[name]
        folder = os.path.dirname(origin)
        parent = os.path.dirname(folder) if is_package else folder
        # Otherwise the name may mean another module by now.
        is_found_there = sys.path == self._path if path is None else parent in path
        if not is_found_there or _state_of(origin) != state:
            return None
        if not size:
            return spec_from_file_location(name, loader=ExtensionFileLoader(name, origin))
        loader = _Loader(name, origin, self._code, start, size)
        folders = [folder] if is_package else None
        return spec_from_file_location(name, loader=loader, submodule_search_locations=folders)

    def new_content(self) -> bytes | None:
        """The file's content with the modules imported since; None if it is not worth writing.

        Raises:
            OSError: The file cannot be read any more.
        """
        missing = {} if sys.dont_write_bytecode else dict(self._missing())
        if len(missing) < _WORTH_SAVING:
            return None
        parts: dict[str, tuple[Any, ...]] = {
            name: (*about, self._code.read(start, size))
            for name, (*about, start, size) in self._modules.items()
        }
        modules: dict[str, Any] = {}
        code = bytearray()
        for name, (*about, part) in list((parts | missing).items())[:_MAX_MODULES]:
            modules[name] = (*about, len(code), len(part))
            code += part
        index = marshal.dumps((self._state(), modules))
        return len(index).to_bytes(_HEADER, "little") + index + code

    def _state(self) -> tuple[bytes, list[State | None]]:
        """What decides where a name is found, and how code is read."""
        return MAGIC_NUMBER, [_state_of(folder) for folder in self._path]

    def _missing(self) -> Iterator[tuple[str, tuple[str, bool, State | None, bytes]]]:
        """The modules of the search path that were imported in the usual way, with their code."""
        folders = tuple(os.path.join(folder, "") for folder in self._path[1:])
        for name in sys.modules.keys() - self._before:
            spec: Any = getattr(sys.modules.get(name), "__spec__", None)
            loader = getattr(spec, "loader", None)
            is_source = type(loader) is SourceFileLoader
            if not (
                is_source or (type(loader) is ExtensionFileLoader and name not in self._modules)
            ):
                continue
            # A module may have been given the name of another.
            if loader.name != name or not loader.path.startswith(folders):
                continue
            state = _state_of(loader.path)
            try:
                code = marshal.dumps(loader.get_code(name)) if is_source else b""
            except (OSError, ValueError, SyntaxError):
                continue  # The source was changed or removed since.
            yield name, (loader.path, loader.is_package(name), state, code)


class _Code:
    """The open file.

    Args:
        descriptor: The file; -1 for none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = None if descriptor < 0 else self._identify()
        self._start = 0

    def read_index(self) -> tuple[object, dict[str, Module]]:
        """Return the state that the file was written in, and its modules. Raises `_DAMAGED`."""
        size = int.from_bytes(os.pread(self._descriptor, _HEADER, 0), "little")
        state, modules = marshal.loads(os.pread(self._descriptor, min(size, _MAX_INDEX), _HEADER))
        self._start = _HEADER + size
        return state, modules

    def read(self, start: int, size: int) -> bytes:
        """Return the code at a place.

        Raises:
            OSError: It cannot be read.
        """
        # A module may have closed the descriptor, and it may be another file's by now.
        if self._identify() != self._identity:
            raise OSError("the file is no longer open")
        return os.pread(self._descriptor, size, self._start + start)

    def _identify(self) -> tuple[int, int]:
        state = os.fstat(self._descriptor)
        return state.st_dev, state.st_ino


class _Loader(SourceFileLoader):
    """Takes a module's code from the file."""

    def __init__(self, name: str, origin: str, code: _Code, start: int, size: int) -> None:
        super().__init__(name, origin)
        self._code = code
        self._place = start, size

    def get_code(self, fullname: str) -> CodeType | None:
        try:
            code = marshal.loads(self._code.read(*self._place))
        except _DAMAGED:
            code = None
        return code if isinstance(code, CodeType) else super().get_code(fullname)


def _state_of(path: str) -> State | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # It was removed.
