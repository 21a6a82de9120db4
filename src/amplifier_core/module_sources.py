"""Sources of modules: protocols that an app implements (Module Source Protocol)."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class ModuleNotFoundError(Exception):
    """A module has no source. The message names the module and the places searched."""


class ModuleLoadError(Exception):
    """A module was found but cannot be imported or mounted."""


class ModuleSource(ABC):
    """A location that a module can be imported from.

    A source may also have

    * `entry_point` (``"package:mount"``, str): the kernel imports this instead of looking
      for a package in the folder;
    * `import_paths` (folders): appended to ``sys.path``, for the package's dependencies;
    * `preferred_paths` (folders): inserted before the environment's installed packages, for
      dependencies that the environment has in another version;
    * `installed` (bool): `entry_point` can be imported from the environment; `resolve` is
      not called.
    """

    @abstractmethod
    def resolve(self) -> Path:
        """Folder that contains an importable package.

        Raises:
            ModuleNotFoundError: The source cannot be resolved.
            OSError: The folder cannot be accessed.
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
            source_hint: The module's `source` in the plan, in the app's format.
            profile_hint: Older name of `source_hint`.

        Raises:
            ModuleNotFoundError: This resolver has no source for the module.
        """
        ...


class FileSystemModuleSource:
    """Folders to search for modules."""

    def __init__(self, paths: list[str] | None = None) -> None:
        self._paths = list(paths or ())

    def get_module_paths(self) -> list[str]:
        """The folders (a copy)."""
        return list(self._paths)

    def get_mention_mappings(self) -> dict[str, str]:
        """Mention prefixes defined by the folders; always empty."""
        return {}
