"""Where modules come from: protocols only. Strategies are the app's (Module Source Protocol)."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class ModuleNotFoundError(Exception):
    """No source for a module. The message says which module and what was tried."""


class ModuleLoadError(Exception):
    """A module was found but cannot be imported or mounted."""


class ModuleSource(ABC):
    """A place a module can be imported from.

    A source may also have

    * `entry_point` (``"package:mount"``, str): the kernel then imports exactly that
      instead of looking for a package in the folder;
    * `import_paths` (folders): put at the end of ``sys.path``, for what the package needs;
    * `preferred_paths` (folders): put before the environment's installed packages, for
      packages that the environment has in another version;
    * `installed` (bool): `entry_point` is importable as things are and belongs to the
      environment; no folder is asked for and no trial mount is made.
    """

    @abstractmethod
    def resolve(self) -> Path:
        """Folder that holds an importable package.

        Raises:
            ModuleNotFoundError: The source cannot be resolved.
            OSError: The filesystem refused.
        """


@runtime_checkable
class ModuleSourceResolver(Protocol):
    """Decides where a module comes from; an app mounts it at ``module-source-resolver``.

    A resolver may also have ``async_resolve`` with the same parameters.
    """

    def resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ModuleSource:
        """The source of `module_id`.

        Args:
            module_id: Module identifier, e.g. ``tool-bash``.
            source_hint: The plan's `source` of the module, in the app's format.
            profile_hint: The same under its older name.

        Raises:
            ModuleNotFoundError: This resolver has no source for the module.
        """
        ...


class FileSystemModuleSource:
    """Folders to look for modules in."""

    def __init__(self, paths: list[str] | None = None) -> None:
        self._paths = list(paths or ())

    def get_module_paths(self) -> list[str]:
        """The folders (a copy)."""
        return list(self._paths)

    def get_mention_mappings(self) -> dict[str, str]:
        """Mention prefixes the folders bring; none."""
        return {}
