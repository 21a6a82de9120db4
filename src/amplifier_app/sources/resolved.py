"""A resolved module: where it comes from, and which other places were searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from amplifier_core.module_sources import ModuleNotFoundError, ModuleSource
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.sources.requirements.layout import Layout

Kind = Literal["bundled", "installed", "folder", "git", "archive", "package"]

Place = Literal[
    "environment", "workspace", "settings", "plan", "bundled", "installed", "folders", "convention"
]
"""The places where a module is looked for, in this order; see `amplifier_app.sources.resolver`."""


class Considered(NamedTuple):
    """One place that was searched for a module.

    Attributes:
        place: The place.
        found: What it has; None if nothing.
        reason: Why it was or was not chosen, in a few words.
        chosen: Whether the module comes from here.
    """

    place: Place
    found: str | None
    reason: str
    chosen: bool = False


@dataclass(eq=False, repr=False)
class ResolvedSource(ModuleSource):
    """A module that is available and can be imported.

    Args:
        kind: The kind of source.
        text: The source for display: a path, a URL, a distribution.
        folder: What goes on `sys.path`, or the package itself if there is no entry point.
        root: The folder or file of the source, for its content hash; by default the package.
        entry_point: `"package:mount"`, if known.
        import_paths: Further folders, for the end of `sys.path`.
        commit: The full commit of a git source.
        archive: `"sha256:…"` of the bytes of an archive.
        distribution: The distribution it is in, if it is in one.
        version: The version of that distribution.
        layout: How to import a folder, with its requirements.
        place: Where it was found.
        search: Returns `considered`; called on first use.

    Attributes:
        root: The folder or file of the source; None for an installed module.
    """

    kind: Kind
    text: str
    _: KW_ONLY
    folder: Path | None = None
    root: Path | None = None
    entry_point: str | None = None
    import_paths: tuple[Path, ...] = ()
    commit: str | None = None
    archive: str | None = None
    distribution: str | None = None
    version: str | None = None
    layout: Layout | None = None
    place: Place = "plan"
    search: Callable[[], tuple[Considered, ...]] = tuple

    def __post_init__(self) -> None:
        self.root = self.root or self.folder

    @property
    def installed(self) -> bool:
        """True if it can be imported from the environment."""
        return self.folder is None

    def resolve(self) -> Path:
        """
        Raises:
            ModuleNotFoundError: The package of an installed module cannot be found.
        """
        return self.folder if self.folder is not None else _package_folder(self.entry_point or "")

    @cached_property
    def considered(self) -> tuple[Considered, ...]:
        """Every place in search order, including the chosen one."""
        return self.search()

    @cached_property
    def content_hash(self) -> str:
        """`"sha256:…"` of its files; see `amplifier_app.sources.fetch.staging`.

        Raises:
            ModuleNotFoundError: The package of an installed module cannot be found.
            OSError: A file cannot be read.
        """
        from amplifier_app.sources.fetch.staging import content_hash

        return content_hash(self.root or self.resolve())

    @property
    def identity(self) -> str:
        """The exact content: the commit, the hash of the archive, the version, or else the path."""
        if self.distribution is not None and self.commit is None:
            return f"{self.distribution} {self.version}"
        return self.commit or self.archive or self.text

    @property
    def requirements(self) -> Mapping[str, str]:
        """Name → version of every distribution installed for it."""
        from amplifier_app.sources.requirements.names import distributions

        return distributions(map(str, (*self.preferred_paths, *self.import_paths)))

    @property
    def preferred_paths(self) -> tuple[Path, ...]:
        """Folders that precede the environment on `sys.path`, with other versions than it has."""
        if not self.import_paths:
            return ()
        from amplifier_app.sources.requirements.names import preferred_in

        return tuple(folder for path in self.import_paths for folder in preferred_in(path))

    @property
    def requires(self) -> Mapping[str, str | None]:
        """Requirement added by the plan, as written → the commit, for a repository."""
        added = self.layout.added if self.layout is not None else ()
        return {addition.written: addition.commit for addition in added}

    def __repr__(self) -> str:
        return f"ResolvedSource({self.kind!r}, {self.text!r}, entry_point={self.entry_point!r})"


def _package_folder(entry_point: str) -> Path:
    name = entry_point.partition(":")[0]
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {name!r} is not installed")
    return Path(spec.origin).parent
