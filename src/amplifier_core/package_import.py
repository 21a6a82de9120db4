"""Import a package from a given path, under its real name and from no other location.

Public: apps import modules with it to inspect them.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

_INSTALLED = ("site-packages", "dist-packages")


def before_installed() -> int:
    """Index on ``sys.path`` after the standard library and before installed packages."""
    for position, folder in enumerate(sys.path):
        if Path(folder).name in _INSTALLED:
            return position
    # Wherever an interpreter keeps its packages, they come after the standard library.
    library = str(Path(importlib.__file__).parent.parent)
    return sys.path.index(library) + 1 if library in sys.path else len(sys.path)


def origin_of(module: ModuleType) -> Path | None:
    """File that a module was loaded from; None if it has no file."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def import_from_path(path: Path | str) -> ModuleType:
    """Import the package folder or module file at `path` under its own name.

    Raises:
        FileNotFoundError: The path does not exist or is a folder without ``__init__.py``.
        ImportError: A module of that name is already loaded from another location.
        Exception: Any exception that the module raises during import.
    """
    # Not resolved: the package has the name of a symbolic link, not of the link's target.
    place = Path(path).absolute()
    file = place / "__init__.py" if place.is_dir() else place
    if not file.is_file():
        raise FileNotFoundError(f"{place} is not a Python package: {file.name} is missing")
    name = place.name if place.is_dir() else place.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        refuse_elsewhere(name, loaded, file.parent)
        return loaded
    spec = importlib.util.spec_from_file_location(
        name,
        file,
        loader=_hooked_loader(name, file),
        submodule_search_locations=[str(place)] if place.is_dir() else None,
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _hooked_loader(name: str, file: Path) -> SourceFileLoader | None:
    """The loader for `file` from the import hook of its folder (`sys.path_hooks`), if there is one.

    A hook that checks imports from a folder thus also checks this import.
    """
    # Not at the top: a session with only installed modules does not need it.
    import pkgutil

    finder = pkgutil.get_importer(str(file.parent))
    found = finder.find_spec(file.stem) if finder is not None else None
    if found is None or found.origin != str(file) or not isinstance(found.loader, SourceFileLoader):
        return None
    return type(found.loader)(name, str(file))


def import_from_folder(name: str, folder: Path) -> ModuleType:
    """Import dotted `name`, which must be located in `folder` (already on ``sys.path``).

    Raises:
        ImportError: It cannot be imported, or that name is loaded from another location.
    """
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    refuse_elsewhere(name, module, folder)
    return module


def refuse_elsewhere(name: str, module: ModuleType, folder: Path) -> None:
    """Raise ImportError unless `module` was loaded from `folder`."""
    origin = origin_of(module)
    if origin is None or not origin.is_relative_to(folder.resolve()):
        raise ImportError(
            f"package {name!r} is already loaded from {origin or 'another location'}; "
            f"cannot also load it from {folder} in the same process"
        )
