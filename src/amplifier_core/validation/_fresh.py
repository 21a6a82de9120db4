"""Load a new copy of a module for one test, independent of earlier tests."""

import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

__all__ = ["fresh_module"]


@contextmanager
def fresh_module(path: Path) -> Generator[ModuleType]:
    """Execute the package or file at ``path`` as a new module object that is not kept in ``sys.modules``.

    Its folder is importable while the block runs. Afterwards ``sys.path`` and the entries of
    ``sys.modules`` under the module's name are restored.

    Raises:
        ImportError: ``path`` is not a Python package or file.
        Exception: any exception of the module's code.
    """
    file = path / "__init__.py" if path.is_dir() else path
    name = path.name if path.is_dir() else path.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"{path} is not a Python package or file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    before = _own_modules(name)
    sys.path.insert(0, folder)
    try:
        # Relative imports and dataclasses look up the name. If it is taken, the tests have imported
        # the package themselves and must keep seeing the same classes.
        sys.modules.setdefault(name, module)
        try:
            spec.loader.exec_module(module)
        finally:
            if name not in before:
                del sys.modules[name]
        yield module
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
        for added in _own_modules(name) - before:
            del sys.modules[added]


def _own_modules(name: str) -> set[str]:
    return {key for key in sys.modules if key == name or key.startswith(f"{name}.")}
