"""Find a module's `mount` function and bind its configuration.

    with a resolver      resolver -> source -> folder -> import -> check mount
    without one          entry point of group "amplifier.modules", else project in a search
                         folder, else package on sys.path

The app decides where modules come from (Module Source Protocol): the loader calls the resolver mounted at
``module-source-resolver``, of any version of the protocol; attributes of a source that have the wrong type
are ignored. A package is imported under its real name, and from its own folder only. The loader does not
call mount functions; `amplifier_core.mounting` does, and checks what they mounted.
"""

import functools
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from amplifier_core._foreign import describe_exception
from amplifier_core.cancellation import await_result
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.models import ModuleInfo
from amplifier_core.module_sources import (
    ENTRY_POINT_GROUP,
    MODULE_FAILURE_REASONS,
    TYPE_TO_MOUNT_POINT,
    ModuleImportError,
    ModuleValidationError,
    NotInstalledError,
    conventional_name,
    conventional_package,
    declared_kind,
    find_kind,
    find_package,
    installed_mount,
    module_failure_reason,
    project_name,
    validation_failure,
)
from amplifier_core.module_sources import ModuleNotFoundError as SourceNotFoundError
from amplifier_support.installation import find_entry_points
from amplifier_support.named_tuple import NamedTuple

__all__ = [
    "ENTRY_POINT_GROUP",
    "MODULE_FAILURE_REASONS",
    "TYPE_TO_MOUNT_POINT",
    "AmplifierModuleLoader",
    "LoadedModule",
    "ModuleLoader",
    "ModuleValidationError",
    "MountFunction",
    "find_kind",
    "find_package",
    "module_failure_reason",
    "resolve",
]

logger = logging.getLogger(__name__)


# Once for all modules of a resolver, and for all sessions that share it.
_read_signature = functools.lru_cache(maxsize=4)(inspect.signature)


async def resolve(resolver: Any, module_id: str, hint: Any) -> Any:
    """The source of a module. Prefers the published keywords to the protocol's positional form."""
    ask = getattr(resolver, "async_resolve", None) or resolver.resolve
    parameters = _read_signature(ask).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [name for name in ("source_hint", "profile_hint") if takes_any or name in parameters]
    arguments = [] if named or len(parameters) < 2 else [hint]
    return await await_result(ask(module_id, *arguments, **dict.fromkeys(named, hint)))


_INSTALLED = ("site-packages", "dist-packages")


def before_installed() -> int:
    """Index on ``sys.path`` after the standard library and before installed packages."""
    for position, folder in enumerate(sys.path):
        if Path(folder).name in _INSTALLED:
            return position
    # Wherever an interpreter keeps its packages, they come after the standard library.
    library = str(Path(importlib.__file__).parent.parent)
    return sys.path.index(library) + 1 if library in sys.path else len(sys.path)


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
        _refuse_elsewhere(name, loaded, file.parent)
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
    spec = finder.find_spec(file.stem) if finder is not None else None
    if spec is None or spec.origin != str(file) or not isinstance(spec.loader, SourceFileLoader):
        return None
    return type(spec.loader)(name, str(file))


def import_from_folder(name: str, folder: Path) -> ModuleType:
    """Import dotted `name`, which must be located in `folder` (already on ``sys.path``).

    Raises:
        ImportError: It cannot be imported, or that name is loaded from another location.
    """
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    _refuse_elsewhere(name, module, folder)
    return module


def _refuse_elsewhere(name: str, module: ModuleType, folder: Path) -> None:
    """Raise ImportError unless `module` was loaded from `folder`."""
    file = getattr(module, "__file__", None)
    origin = Path(file).resolve() if file else None
    if origin is None or not origin.is_relative_to(folder.resolve()):
        raise ImportError(
            f"package {name!r} is already loaded from {origin or 'another location'}; "
            f"cannot also load it from {folder} in the same process"
        )


MountFunction = Callable[[ModuleCoordinator], Awaitable[Any]]

_path_users: dict[str, int] = {}
"""Number of loaders using each folder that a loader of this process added to ``sys.path``."""


class LoadedModule(NamedTuple):
    """A module that was found; the attribute ``__amplifier_module__`` of the function `load` returns.

    Attributes:
        module_id: Its id in the plan.
        mount: Its mount function.
        package: The Python module that defines `mount`.
        declared: The kind it declares, or None.
        ready: Its ``on_session_ready``, or None.
        folder: The folder of its source; None for modules installed in the environment.
    """

    module_id: str
    mount: Callable[..., Any]
    package: ModuleType | None
    declared: str | None
    ready: Callable[..., Any] | None
    folder: Path | None


class ModuleLoader:
    """Loads modules for one session.

    Args:
        coordinator: Where to look for a resolver.
        search_paths: Folders that contain module projects named ``amplifier-module-<id>``;
            default: those in the variable ``AMPLIFIER_MODULES``, separated as in ``PATH``.
    """

    def __init__(
        self, coordinator: ModuleCoordinator | None = None, search_paths: list[Path] | None = None
    ) -> None:
        self.coordinator = coordinator
        self._search_paths = search_paths
        self._loaded: dict[str, LoadedModule] = {}
        self._added_paths: list[str] = []
        self._ready_queue: list[tuple[str, Callable[..., Any]]] = []

    async def load(
        self,
        module_id: str,
        config: dict[str, Any] | None = None,
        source_hint: Any = None,
        coordinator: ModuleCoordinator | None = None,
        *,
        profile_source: Any = None,
    ) -> MountFunction:
        """Return a function ``mount(coordinator)`` of the module with `config` bound.

        Args:
            module_id: Module identifier, e.g. ``tool-bash``.
            config: The module's configuration.
            source_hint: The module's `source` in the plan, for the resolver.
            coordinator: Used if the loader was created without one.
            profile_source: Older name of `source_hint`.

        Raises:
            amplifier_core.module_sources.ModuleNotFoundError: The module is not found by the
                resolver or in the environment; also a ValueError if no resolver is mounted.
            ModuleValidationError: Its mount function is missing or invalid.
            ImportError: Its package cannot be imported, or its id is already loaded from another
                location. This and the previous one are also `module_sources.ModuleLoadError`.
        """
        config = config or {}
        hint = source_hint if source_hint is not None else profile_source
        resolver = self._resolver(coordinator)
        if resolver is None:
            loaded = self._loaded.get(module_id) or self._load_direct(module_id)
        else:
            loaded = await self._load_resolved(resolver, module_id, hint)
        self._loaded[module_id] = loaded
        return _bind(loaded, config)

    def _resolver(self, coordinator: ModuleCoordinator | None) -> Any:
        coordinator = self.coordinator or coordinator
        if coordinator is None:
            return None
        try:
            return coordinator.get("module-source-resolver")
        except ValueError:
            # A coordinator without this mount point has no resolver.
            return None

    # Without a resolver

    def _load_direct(self, module_id: str) -> LoadedModule:
        """Load by the entry point, else from the search folders, else from ``sys.path``."""
        with _importing(module_id):
            mount = installed_mount(module_id)
        if callable(mount):
            return _unchecked(module_id, mount)
        for folder in self._folders():
            project = (folder / project_name(module_id)).absolute()
            if project.is_dir():
                self._add_path(project)
                place = find_package(module_id, project)
                with _importing(module_id, project):
                    package = import_from_path(place)
                return _unchecked(module_id, _find_mount(module_id, package), project)
        with _importing(module_id):
            mount = getattr(conventional_package(module_id), "mount", None)
        if callable(mount):
            return _unchecked(module_id, mount)
        folders = "".join(f", no project in {folder}" for folder in self._folders())
        raise NotInstalledError(
            f"Module '{module_id}' not found via entry points or filesystem: no entry point "
            f"in group '{ENTRY_POINT_GROUP}'{folders} and no package "
            f"'{conventional_name(module_id)}' with a mount function. "
            "Install it, or set its 'source'."
        )

    # With a resolver

    async def _load_resolved(self, resolver: Any, module_id: str, hint: Any) -> LoadedModule:
        known = self._loaded.get(module_id)
        try:
            source = await resolve(resolver, module_id, hint)
        except SourceNotFoundError as not_found:
            try:
                return known or self._load_direct(module_id)
            except NotInstalledError:
                raise not_found from None
        entry_point = getattr(source, "entry_point", None)
        entry_point = entry_point if isinstance(entry_point, str) else ""
        if getattr(source, "installed", False) is True:
            if known is None:
                self._add_requirements(source)
            return known or self._load_installed(module_id, entry_point)
        folder = Path(source.resolve())
        if known is not None:
            if known.folder is None or known.folder.resolve() != folder.resolve():
                raise ModuleImportError(
                    f"Module '{module_id}' is already loaded from "
                    f"{known.folder or 'the environment'}; "
                    f"cannot also load it from {folder}"
                )
            return known
        self._add_requirements(source)
        return self._load_folder(module_id, folder, entry_point)

    def _load_installed(self, module_id: str, entry_point: str) -> LoadedModule:
        """Import a module of the environment as installed."""
        target, _, attribute = entry_point.partition(":")
        with _importing(module_id):
            # As `import_module`, but faster for each session after the first one.
            package = __import__(target, fromlist=("__name__",))
        return _unchecked(module_id, _find_mount(module_id, package, attribute))

    def _load_folder(self, module_id: str, folder: Path, entry_point: str) -> LoadedModule:
        self._add_path(folder)
        target, _, attribute = entry_point.partition(":")
        place = entry_point or find_package(module_id, folder)
        with _importing(module_id, folder):
            package = import_from_folder(target, folder) if entry_point else import_from_path(place)
        declared = declared_kind(module_id, package)
        if declared != "resolver":
            from amplifier_core.module_checks import check_mount_function, select_errors

            failed = select_errors(check_mount_function(package, attribute or "mount"))
            if failed:
                raise validation_failure(module_id, failed)
        mount = _find_mount(module_id, package, attribute)
        return LoadedModule(module_id, mount, package, declared, _ready_function(mount), folder)

    def _add_requirements(self, source: Any) -> None:
        for path in _read_folders(source, "preferred_paths"):
            self._add_path(path, before_installed())
        for path in _read_folders(source, "import_paths"):
            self._add_path(path, len(sys.path))

    def _add_path(self, folder: Path, position: int = 0) -> None:
        text = str(folder)
        if text in self._added_paths or (text in sys.path and text not in _path_users):
            return
        if text not in sys.path:
            sys.path.insert(position, text)
        self._added_paths.append(text)
        _path_users[text] = _path_users.get(text, 0) + 1

    # Discovery, mounting and cleanup

    async def discover(self) -> list[ModuleInfo]:
        """Installed modules, followed by those in the search folders."""
        infos = [
            _describe(entry.name, entry.dist.version if entry.dist else "")
            for entry in find_entry_points(ENTRY_POINT_GROUP)
        ]
        for folder in self._folders():
            projects = [path for path in sorted(folder.glob(project_name("*"))) if path.is_dir()]
            infos += [_describe(path.name.removeprefix(project_name("")), "") for path in projects]
        return infos

    def _folders(self) -> list[Path]:
        if self._search_paths is not None:
            return [Path(path) for path in self._search_paths]
        named = os.environ.get("AMPLIFIER_MODULES", "")
        return [Path(path) for path in named.split(os.pathsep) if path]

    async def initialize(self, module: MountFunction, coordinator: ModuleCoordinator) -> Any:
        """Call the function that `load` returned; returns what the module's mount function returned."""
        return await module(coordinator)

    def cleanup(self) -> None:
        """Remove the folders this loader added to ``sys.path``, unless other loaders use them."""
        for path in self._added_paths:
            _path_users[path] -= 1
            if _path_users[path] == 0:
                del _path_users[path]
                if path in sys.path:
                    sys.path.remove(path)
        self._added_paths.clear()

    def enqueue_on_session_ready(self, module_id: str, function: Callable[..., Any]) -> None:
        self._ready_queue.append((module_id, function))

    def get_on_session_ready_queue(self) -> list[tuple[str, Callable[..., Any]]]:
        """``(module id, function)`` in mount order (a copy)."""
        return list(self._ready_queue)

    def clear_on_session_ready_queue(self) -> None:
        self._ready_queue.clear()


AmplifierModuleLoader = ModuleLoader
"""Name used by the Module Source Protocol."""


def _describe(module_id: str, version: str) -> ModuleInfo:
    kind: Any = find_kind(module_id)
    return ModuleInfo(
        id=module_id,
        name=module_id,
        version=version,
        type=kind,
        mount_point=TYPE_TO_MOUNT_POINT[kind],
        description="",
    )


def _read_folders(source: Any, name: str) -> Sequence[Any]:
    paths = getattr(source, name, None)
    return paths if isinstance(paths, (list, tuple)) else ()


def _find_mount(module_id: str, package: ModuleType, attribute: str = "") -> Callable[..., Any]:
    name = attribute or "mount"
    with _importing(module_id):
        # Reading it may import more of the module.
        mount = getattr(package, name, None)
    if callable(mount):
        return mount
    raise ModuleValidationError(
        f"Module '{module_id}' has no mount function '{package.__name__}:{name}'; "
        "define `async def mount(coordinator, config=None)`",
        reason_code="invalid_entry_point",
    )


def _unchecked(
    module_id: str, mount: Callable[..., Any], folder: Path | None = None
) -> LoadedModule:
    ready = _ready_function(mount)
    if ready is not None and not inspect.iscoroutinefunction(ready):
        logger.warning("on_session_ready of '%s' is not async; it will not run", module_id)
        ready = None
    package = sys.modules.get(getattr(mount, "__module__", None) or "")
    declared = declared_kind(module_id, package)
    return LoadedModule(module_id, mount, package, declared, ready, folder)


def _bind(loaded: LoadedModule, config: dict[str, Any]) -> MountFunction:
    async def mount(coordinator: ModuleCoordinator) -> Any:
        return await await_result(loaded.mount(coordinator, config))

    if loaded.ready is not None:
        mount.__on_session_ready__ = (loaded.module_id, loaded.ready)  # type: ignore[attr-defined]
    mount.__amplifier_module__ = loaded  # type: ignore[attr-defined]
    return mount


@contextmanager
def _importing(module_id: str, folder: Path | None = None) -> Generator[None]:
    """Report any exception in the block as a `ModuleImportError`: a module may raise anything."""
    try:
        yield
    except (Exception, SystemExit) as error:
        root = folder.resolve() if folder is not None else None
        described = describe_exception(error, root)
        if isinstance(error, ImportError):
            described = described.removeprefix(f"{type(error).__name__}: ")
        raise ModuleImportError(f"Module '{module_id}' cannot be imported: {described}") from error


def _ready_function(mount: Callable[..., Any]) -> Callable[..., Any] | None:
    """``on_session_ready`` of the Python module that defines `mount`, or of its nearest parent."""
    name = getattr(mount, "__module__", None) or ""
    while name:
        ready = getattr(sys.modules.get(name), "on_session_ready", None)
        if callable(ready):
            return ready
        name = name.rpartition(".")[0]
    return None
