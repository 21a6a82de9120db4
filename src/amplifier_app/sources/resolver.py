"""Where each module of a plan comes from: the kernel's resolver (Module Source Protocol).

a source in the plan    folder · git · installed package
else                    bundled · installed entry point · package `amplifier_module_<id>`
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from amplifier_app import paths
from amplifier_app.sources import installed
from amplifier_app.sources.dependencies import DependencyCache
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.git import GitCache
from amplifier_app.sources.layout import find_layout
from amplifier_app.sources.spec import (
    FolderSource,
    GitSource,
    PackageSource,
    SourceSyntaxError,
    parse_source,
)
from amplifier_core.module_sources import ModuleNotFoundError, ModuleSource

Kind = Literal["bundled", "installed", "folder", "git", "package"]


class ResolvedSource(ModuleSource):
    """A module that is there and can be imported.

    Args:
        kind: How it was found.
        text: What it was found as, for a person: a path, a URL, a distribution.
        folder: What goes on `sys.path`, or the package itself if there is no entry point.
        entry_point: `"package:mount"`, if it is known.
        import_paths: Further folders, for the end of `sys.path`.
        commit: The full commit of a git source.
    """

    def __init__(
        self,
        kind: Kind,
        text: str,
        *,
        folder: Path | None = None,
        entry_point: str | None = None,
        import_paths: tuple[Path, ...] = (),
        commit: str | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.text = text
        self.entry_point = entry_point
        self.import_paths = import_paths
        self.commit = commit
        self.installed = folder is None
        self._folder = folder

    def resolve(self) -> Path:
        """
        Raises:
            ModuleNotFoundError: The package of an installed module cannot be found.
        """
        if self._folder is not None:
            return self._folder
        return _package_folder(self.entry_point or "")

    def __repr__(self) -> str:
        return f"ResolvedSource({self.kind!r}, {self.text!r}, entry_point={self.entry_point!r})"


class AppModuleSourceResolver:
    """Resolves modules for one session; results are kept for its life.

    Args:
        folder: Where relative paths start; those of a plan are absolute already.
        cache: The folder of what was fetched, `paths.cache_dir()` by default.
    """

    def __init__(self, folder: Path | None = None, cache: Path | None = None) -> None:
        self._folder = folder
        self._cache = cache
        self._resolved: dict[tuple[str, str | None], ResolvedSource] = {}
        self._commits: dict[tuple[str, str | None], str] = {}
        self._lock = threading.Lock()
        self._repositories: dict[str, threading.Lock] = {}

    def resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ResolvedSource:
        """The source of a module; git sources are fetched before this returns.

        Args:
            module_id: What the plan calls the module.
            source_hint: The plan's `source` of it.
            profile_hint: The same under its older name.

        Raises:
            ModuleNotFoundError: The plan names no source, and nothing here is called so.
            SourceError: The source the plan names cannot be had.
        """
        return self._resolve(module_id, _hint(module_id, source_hint, profile_hint), None)

    async def async_resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ResolvedSource:
        """`resolve` without blocking the event loop; cancelling it ends what fetches."""
        hint = _hint(module_id, source_hint, profile_hint)
        if hint is None or (module_id, hint) in self._resolved:
            return self._resolve(module_id, hint, None)
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._resolve, module_id, hint, stop)
        except asyncio.CancelledError:
            stop.set()
            raise

    async def prefetch(self, mount_plan: dict[str, Any]) -> None:
        """Resolve every module of a mount plan at once, so that all failures are told together.

        Raises:
            SourceError: One or more modules cannot be had.
        """
        wanted = list(dict.fromkeys(_modules(mount_plan)))
        results = await asyncio.gather(
            *(self.async_resolve(module_id, source) for module_id, source in wanted),
            return_exceptions=True,
        )
        failures: list[tuple[str, BaseException]] = []
        for (module_id, _), result in zip(wanted, results, strict=True):
            if isinstance(result, (SourceError, ModuleNotFoundError)):
                failures.append((module_id, result))
            elif isinstance(result, BaseException):
                raise result
        if len(failures) == 1:
            module_id, failure = failures[0]
            hint = failure.hint if isinstance(failure, SourceError) else None
            raise SourceError(f"{module_id}: {_message(failure)}", hint=hint)
        if failures:
            listed = "\n".join(f"{module_id}: {failure}" for module_id, failure in failures)
            raise SourceError(f"{len(failures)} modules cannot be had:\n{listed}")

    # -- the order -------------------------------------------------------------------

    def _resolve(
        self, module_id: str, hint: str | None, stop: threading.Event | None
    ) -> ResolvedSource:
        key = (module_id, hint)
        known = self._resolved.get(key)
        if known is None:
            known = self._find(module_id) if hint is None else self._fetch(module_id, hint, stop)
            self._resolved[key] = known
        return known

    def _find(self, module_id: str) -> ResolvedSource:
        own = installed.bundled().get(module_id)
        if own is not None:
            return ResolvedSource("bundled", own.distribution, entry_point=own.entry_point)
        for found in installed.installed(module_id):
            text = f"{found.distribution} {found.version}"
            return ResolvedSource("installed", text, entry_point=found.entry_point)
        conventional = installed.by_convention(module_id)
        if conventional is not None:
            text = conventional.partition(":")[0]
            return ResolvedSource("installed", text, entry_point=conventional)
        raise ModuleNotFoundError(_not_found(module_id))

    def _fetch(self, module_id: str, hint: str, stop: threading.Event | None) -> ResolvedSource:
        try:
            source = parse_source(hint, self._folder or Path.cwd())
        except SourceSyntaxError as error:
            raise SourceError(error.message, hint=error.hint) from error
        if isinstance(source, PackageSource):
            return _from_package(module_id, source)
        if isinstance(source, FolderSource):
            return self._from_folder(module_id, source.path, "folder", source.text, None, stop)
        return self._from_git(module_id, source, stop)

    # -- kinds of sources ------------------------------------------------------------

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
        return ResolvedSource("package", text, entry_point=chosen.entry_point)
    conventional = installed.by_convention(module_id)
    if not points and conventional is not None:
        return ResolvedSource("package", source.name, entry_point=conventional)
    offers = f"only {', '.join(sorted(by_id))}" if by_id else "no modules at all"
    raise SourceError(f"the package {source.name!r} offers {offers}, and not {module_id!r}")


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    return name.isidentifier() and find_spec(name) is not None


def _package_folder(entry_point: str) -> Path:
    from importlib.util import find_spec

    name = entry_point.partition(":")[0]
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {name!r} is not installed")
    return Path(spec.origin).parent


def _hint(module_id: str, source_hint: Any, profile_hint: Any) -> str | None:
    hint = source_hint if source_hint is not None else profile_hint
    if hint is None or isinstance(hint, str):
        return hint or None
    raise SourceError(f"the source of {module_id!r} is a {type(hint).__name__}, not a text")


def _modules(mount_plan: dict[str, Any]) -> Iterable[tuple[str, str | None]]:
    session = mount_plan["session"]
    entries = [session["orchestrator"], session["context"]]
    for section in ("providers", "tools", "hooks"):
        entries.extend(mount_plan.get(section) or [])
    for entry in entries:
        if isinstance(entry, str):
            yield entry, None
        else:
            yield entry["module"], entry.get("source")


def _message(failure: BaseException) -> str:
    return failure.message if isinstance(failure, SourceError) else str(failure)


def _not_found(module_id: str) -> str:
    import difflib

    known = sorted({*installed.bundled(), *(one.module_id for one in installed.installed())})
    near = difflib.get_close_matches(module_id, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
    return (
        f"there is no module {module_id!r}: it is neither bundled nor installed, "
        f"and the plan gives no 'source' for it; {advice}"
    )
