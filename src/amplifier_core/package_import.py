"""Importing a package from a given place, under its real name, and from nowhere else."""

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

_INSTALLED = ("site-packages", "dist-packages")


def before_installed() -> int:
    """The position on ``sys.path`` after the standard library and before installed packages."""
    for position, folder in enumerate(sys.path):
        if Path(folder).name in _INSTALLED:
            return position
    # An interpreter that keeps its packages elsewhere still has them after the standard library.
    library = str(Path(importlib.__file__).parent.parent)
    return sys.path.index(library) + 1 if library in sys.path else len(sys.path)


def origin_of(module: ModuleType) -> Path | None:
    """File a module was loaded from; None for what has no file."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def import_from_path(path: Path | str) -> ModuleType:
    """The package folder or module file at `path`, registered under its own name.

    Raises:
        FileNotFoundError: There is nothing, or a folder without ``__init__.py``.
        ImportError: That name is already loaded from another place.
        Exception: Whatever the module raises while it is imported.
    """
    # Not resolved: behind a link the folder may have any name, and the package's is the link's.
    place = Path(path).absolute()
    file = place / "__init__.py" if place.is_dir() else place
    if not file.is_file():
        raise FileNotFoundError(f"{place} is no Python package: {file.name} is missing")
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
    """The loader that the process's own hook for the file's folder has for it, if there is one.

    Who guards the imports from a folder (`sys.path_hooks`) guards them here as well.
    """
    # Not at the top: a session of installed modules has no use for it.
    import pkgutil

    finder = pkgutil.get_importer(str(file.parent))
    found = finder.find_spec(file.stem) if finder is not None else None
    if found is None or found.origin != str(file) or not isinstance(found.loader, SourceFileLoader):
        return None
    return type(found.loader)(name, str(file))


def import_from_folder(name: str, folder: Path) -> ModuleType:
    """Import dotted `name`, which must come from below `folder` (already on ``sys.path``).

    Raises:
        ImportError: It cannot be imported, or that name is loaded from elsewhere.
    """
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    refuse_elsewhere(name, module, folder)
    return module


def refuse_elsewhere(name: str, module: ModuleType, folder: Path) -> None:
    """Raises ImportError unless `module` was loaded from below `folder`."""
    origin = origin_of(module)
    if origin is None or not origin.is_relative_to(folder.resolve()):
        raise ImportError(
            f"Package {name!r} is already loaded from {origin or 'elsewhere'}, "
            f"not from {folder}; two packages of one name cannot live in one process"
        )
