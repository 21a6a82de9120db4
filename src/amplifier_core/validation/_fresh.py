"""Loading a module afresh for one test, whatever state an earlier test left it in."""

import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

__all__ = ["fresh_module"]


@contextmanager
def fresh_module(path: Path) -> Generator[ModuleType]:
    """Execute the package or file at ``path`` as a new module object, which ``sys.modules`` does not keep.

    While the block runs its folder is importable; afterwards ``sys.path`` and what the module brought
    into ``sys.modules`` under its own name are as before.

    Raises:
        ImportError: there is no Python package or file at ``path``.
        Exception: whatever the module's own code raises.
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
        # Relative imports and dataclasses look the name up. Where it is taken, the tests have imported
        # the package themselves and must go on seeing one set of classes.
        sys.modules.setdefault(name, module)
        try:
            spec.loader.exec_module(module)
        finally:
            if name not in before:
                del sys.modules[name]
        yield module
    finally:
        sys.path.remove(folder)
        for added in _own_modules(name) - before:
            del sys.modules[added]


def _own_modules(name: str) -> set[str]:
    return {key for key in sys.modules if key == name or key.startswith(f"{name}.")}
