"""A source text → a module on this machine that can be imported."""

from __future__ import annotations

import threading
from pathlib import Path

from amplifier_app import paths
from amplifier_app.sources import installed
from amplifier_app.sources.dependencies import DependencyCache
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.git import GitCache
from amplifier_app.sources.layout import find_layout
from amplifier_app.sources.resolved import Kind, ResolvedSource
from amplifier_app.sources.spec import (
    FolderSource,
    GitSource,
    PackageSource,
    SourceSyntaxError,
    parse_source,
)


class Fetcher:
    """Fetches sources for one session.

    Args:
        folder: Where relative paths start, the working directory by default.
        cache: The folder of what was fetched, `paths.cache_dir()` by default.
        offline: Whether nothing but the cache may be used.
    """

    def __init__(
        self, folder: Path | None = None, cache: Path | None = None, *, offline: bool = False
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._offline = offline
        self._commits: dict[tuple[str, str | None], str] = {}
        self._lock = threading.Lock()
        self._repositories: dict[str, threading.Lock] = {}

    def fetch(
        self, module_id: str, text: str, stop: threading.Event | None = None
    ) -> ResolvedSource:
        """The module of a source, with what it requires.

        Raises:
            SourceError: It cannot be had.
            Stopped: `stop` was set.
        """
        try:
            source = parse_source(text, self._folder or Path.cwd())
        except SourceSyntaxError as error:
            raise SourceError(error.message, hint=error.hint) from error
        if isinstance(source, PackageSource):
            return _from_package(module_id, source)
        if isinstance(source, FolderSource):
            return self._from_folder(module_id, source.path, "folder", source.text, None, stop)
        return self._from_git(module_id, source, stop)

    def _from_git(
        self, module_id: str, source: GitSource, stop: threading.Event | None
    ) -> ResolvedSource:
        cache = GitCache((self._cache or paths.cache_dir()) / "git")
        with self._lock:
            one_at_a_time = self._repositories.setdefault(source.url, threading.Lock())
        # Modules of one repository share the look-up and the fetch.
        with one_at_a_time:
            key = (source.url, source.ref)
            if key not in self._commits:
                self._commits[key] = cache.look_up(source, stop=stop)
            checkout = cache.fetch(source, commit=self._commits[key], stop=stop)
        return self._from_folder(
            module_id, checkout.folder, "git", source.shown, checkout.commit, stop
        )

    def _from_folder(
        self,
        module_id: str,
        path: Path,
        kind: Kind,
        text: str,
        commit: str | None,
        stop: threading.Event | None,
    ) -> ResolvedSource:
        layout = find_layout(path, module_id)
        cache = DependencyCache((self._cache or paths.cache_dir()) / "dependencies")
        required = cache.folder_for(layout, stop=stop)
        return ResolvedSource(
            kind,
            text,
            folder=layout.folder,
            root=path,
            entry_point=layout.entry_point,
            import_paths=() if required is None else (required,),
            commit=commit,
        )


def _from_package(module_id: str, source: PackageSource) -> ResolvedSource:
    points = installed.installed_in(source.name)
    if points is None:
        name = source.name.replace("-", "_")
        if _is_importable(name):
            return ResolvedSource("package", name, entry_point=f"{name}:mount")
        raise SourceError(
            f"the package {source.name!r} is not installed",
            hint=f"install it beside Amplifier, or for a folder write './{source.name}'",
        )
    by_id = {point.module_id: point for point in points}
    chosen = by_id.get(module_id) or (points[0] if len(points) == 1 else None)
    if chosen is not None:
        text = f"{chosen.distribution} {chosen.version}"
        return ResolvedSource(
            "package", text, entry_point=chosen.entry_point, version=chosen.version
        )
    conventional = installed.by_convention(module_id)
    if not points and conventional is not None:
        return ResolvedSource("package", source.name, entry_point=conventional)
    offers = f"only {', '.join(sorted(by_id))}" if by_id else "no modules at all"
    raise SourceError(f"the package {source.name!r} offers {offers}, and not {module_id!r}")


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    return name.isidentifier() and find_spec(name) is not None
