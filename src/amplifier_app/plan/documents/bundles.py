"""The bundles that a document includes, directly and indirectly, in merge order.

./other.md  ./folder            a file, or a folder with bundle.md or bundle.yaml
namespace:behaviors/x           a file of a bundle, by the bundle's name
namespace                       the bundle of that name
git+https://…@ref#subdirectory= fetched; the subdirectory may be a file
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from amplifier_app.base.errors import ConfigError, Location, ModuleError
from amplifier_app.plan.documents.document import DocumentReader, Listed, Opened, Origin, read_root
from amplifier_app.plan.documents.namespaces import BUNDLE_FILES, Checkout, bundle_in
from amplifier_app.plan.documents.profile_paths import SUFFIXES
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.schema.rules import NAME
from amplifier_app.plan.source_spec import FolderSource, SourceSyntaxError, is_path, parse_source
from amplifier_app.plan.tree.nodes import MapNode, Scalar
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_bytes
from amplifier_support.named_tuple import NamedTuple

MAX_DEPTH = 20
MAX_BUNDLES = 500

WELL_KNOWN = {"foundation": "git+https://github.com/microsoft/amplifier-foundation@main"}
"""Bundles that can be included by name alone. `sources:` in settings overrides these."""

_FORMS = (*("{}", "{}.md", "{}.yaml", "{}.yml"), *(f"{{}}/{name}" for name in BUNDLE_FILES))
_INCLUDED = PLAN._replace(what="the bundle", bundle=True)


class Fetched(NamedTuple):
    """A bundle that was fetched.

    Attributes:
        path: The file or folder that its source names, possibly without its suffix.
        checkout: Everything that was fetched with it.
    """

    path: Path
    checkout: Checkout


class BundleFetcher(Protocol):
    """Fetches bundles that are not on this machine.

    Attributes:
        found: The sources of the fetched bundles, with what each was resolved to.
        reads_plugins: Whether to read plugins, too.
    """

    @property
    def found(self) -> Mapping[str, Any]: ...

    @property
    def reads_plugins(self) -> bool: ...

    def fetch(self, source: str, plan: Path) -> Fetched:
        """A bundle.

        Args:
            source: Its source: `git+…` or an archive.
            plan: The document being loaded, for its lock.

        Raises:
            ModuleError: It is unavailable, or does not match the lock.
            ConfigError: The lock is missing or damaged.
        """
        ...

    def check(self, folder: Path, digest: str) -> None:
        """
        Raises:
            ModuleError: The content of a folder does not have this digest.
        """
        ...


OpenFetcher: TypeAlias = Callable[[Path | None], BundleFetcher]
"""Creates the fetcher for the bundles of one plan, given the folder of its project."""


class Bundles:
    """The bundles of one plan.

    Args:
        reader: Reads them, and collects the problems.
        sources: The sources that settings set for bundles, by name.
        fetcher: Fetches them; with None only bundles on this machine are read.
    """

    def __init__(
        self, reader: DocumentReader, sources: Mapping[str, Scalar], fetcher: BundleFetcher | None
    ) -> None:
        self._reader = reader
        self._problems = reader.problems
        self._namespaces = reader.namespaces
        self._sources = sources
        self._fetcher = fetcher
        self._opened: dict[Path, Opened] = {}
        self._names: dict[Path, str | None] = {}
        self._count = 0
        self._failed = False
        self._plan = Path()

    def included(self, document: Opened) -> list[Opened]:
        """The bundles that a document includes, directly or indirectly, each after those it
        includes itself. A bundle that is included twice is listed twice; the document is not."""
        self._plan = document.path
        self._know(document)
        return self._included(document, [document])

    def source(self, text: str, at: Location, folder: Path) -> Opened | None:
        """The bundle that the user names, or None with a problem.

        Args:
            text: A path, a folder, a source or the name of a bundle.
            at: Where it was named.
            folder: The folder that relative paths start from.
        """
        self._plan = folder / "plan"
        return self._open(Listed(text, at), Origin(at.file, self._plan, published=True))

    # -- walking -----------------------------------------------------------------------

    def _included(self, document: Opened, above: list[Opened]) -> list[Opened]:
        bundles: list[Opened] = []
        for include in document.lists.includes if document.lists is not None else ():
            opened = self._open(include, document.origin)
            if opened is None:
                continue
            if opened.path in [other.path for other in above]:
                names = [other.file for other in above]
                cycle = names[names.index(opened.file) :]
                self._problems.add_cycle("'includes'", cycle, include.at)
            elif len(above) > MAX_DEPTH:
                message = f"bundles are nested more than {MAX_DEPTH} levels deep"
                self._problems.add(message, include.at)
            elif self._count >= MAX_BUNDLES:
                self._problems.add(f"more than {MAX_BUNDLES} bundles are included", include.at)
                break
            else:
                self._count += 1
                self._refuse_extends(opened)
                bundles += [*self._included(opened, [*above, opened]), opened]
        return bundles

    def _refuse_extends(self, opened: Opened) -> None:
        root = opened.root
        if isinstance(root, MapNode) and "extends" in root.items:
            message = "an included document cannot use 'extends'"
            hint = "include the other document instead: 'includes: [{bundle: …}]'"
            self._problems.add(message, root.key_at("extends"), hint)

    def _open(self, include: Listed, origin: Origin) -> Opened | None:
        reported = len(self._problems)
        path = self._locate(include, origin)
        if path is None:
            # If a bundle could not be fetched, its namespaces are unknown, too.
            if len(self._problems) == reported and not self._failed and self._fetcher is not None:
                self._report_missing(include, origin)
            return None
        if path not in self._opened:
            file = self._namespaces.shown(path, origin.file, origin.path)
            try:
                self._opened[path] = self._reader.open(file, path, _INCLUDED)
            except ConfigError as error:
                self._problems.add(error.message, include.at, error.hint)
                return None
            self._know(self._opened[path])
        opened = self._opened[path]
        return opened if isinstance(opened.root, MapNode) else None

    def _know(self, opened: Opened) -> None:
        name, path = opened.origin.name, opened.path
        root = opened.lists.namespace_root if opened.lists is not None else None
        if root is not None and name:
            folder = Path(os.path.normpath(path.parent / os.path.expanduser(root.text)))
            if self._namespaces.may_read(path, folder):
                self._namespaces.add(name, folder)
            else:
                message = f"{root.text!r} is outside the fetched files"
                self._problems.add(message, root.at)
        self._namespaces.add_bundle(path, name, self._read_name)

    def _read_name(self, path: Path) -> str | None:
        """The name of a bundle that is not included itself."""
        if path not in self._names:
            data = read_bytes(path, str(path), "the bundle")
            root = read_root(path.name, data, PLAN, Problems())
            self._names[path] = root.text("name") if isinstance(root, MapNode) else None
        return self._names[path]

    # -- finding -----------------------------------------------------------------------

    def _locate(self, include: Listed, origin: Origin) -> Path | None:
        text = include.text
        if "${" in text:
            message = "variables are not supported here"
            self._problems.add(message, include.at, "write the source itself")
            return None
        if re.fullmatch(NAME, text) and not text.endswith(SUFFIXES):
            return self._find_by_name(text, include.at, origin)
        if is_path(text) or "://" in text or text.startswith("git+"):
            return self._from_source(include, origin.path.parent, origin)
        name, colon, _ = text.partition(":")
        if colon and re.fullmatch(NAME, name):
            path = self._namespaces.find(origin.path, text, _FORMS, origin.name).path
            known = self._namespaces.roots(name, origin.path)
            if path is None and not known and self._from_elsewhere(name, include.at, origin):
                return self._namespaces.find(origin.path, text, _FORMS, origin.name).path
            return path
        return self._from_source(include._replace(text=f"./{text}"), origin.path.parent, origin)

    def _find_by_name(self, name: str, at: Location, origin: Origin) -> Path | None:
        """Find a bundle by name: a known one, one near the document, or one from settings."""
        for root in self._namespaces.roots(name, origin.path):
            if file := bundle_in(root):
                return file
        for file_name in BUNDLE_FILES:
            match = self._namespaces.find(origin.path, f"{name}:{file_name}", own=origin.name)
            if match.path is not None:
                return match.path
        return self._from_elsewhere(name, at, origin)

    def _from_elsewhere(self, name: str, at: Location, origin: Origin) -> Path | None:
        """The bundle of this name in settings, or else a well-known one."""
        written = self._sources.get(name)
        if written is not None:
            folder = Path(written.at.file).parent
            path = self._from_source(Listed(str(written.value), written.at), folder, origin)
        elif name in WELL_KNOWN:
            path = self._from_source(Listed(WELL_KNOWN[name], at), Path.cwd(), origin)
        else:
            return None
        if path is not None:
            self._namespaces.add(name, path.parent)
        return path

    def locate(self, one: Listed, origin: Origin, plan: Path, what: str = "plugin") -> Path | None:
        """The file or folder of a source, which is fetched if it is not on this machine; None with a problem.

        Args:
            one: The source; a relative path starts at the folder of `origin`.
            origin: The document that names it. A fetched document may only name fetched files.
            plan: The plan being loaded, for its lock.
            what: What the source is, in messages.
        """
        try:
            source = parse_source(one.text, origin.path.parent)
        except SourceSyntaxError as error:
            self._problems.add(error.message, one.at, error.hint)
            return None
        if isinstance(source, FolderSource):
            if not self._namespaces.may_read(origin.path, source.path):
                self._problems.add(f"{one.text!r} is outside the fetched files", one.at)
                return None
            return source.path
        if self._fetcher is None:
            return None
        try:
            fetched = self._fetcher.fetch(source.text, plan)
        except ModuleError as error:
            message = f"the {what} cannot be fetched: {error.message}"
            self._problems.add(message, one.at, error.hint)
            self._failed = True
            return None
        self._namespaces.add_checkout(fetched.checkout)
        return fetched.path

    def _from_source(self, include: Listed, folder: Path, origin: Origin) -> Path | None:
        origin = origin._replace(path=folder / origin.path.name)
        place = self.locate(include, origin, self._plan, "bundle")
        path = _bundle_file(place) if place is not None else None
        if place is None or (path is None and self._namespaces.find_checkout(place) is None):
            return None
        if path is None or not self._namespaces.may_read(place, path):
            hint = f"expected a bundle file, or a folder with one of {', '.join(BUNDLE_FILES)}"
            self._problems.add(f"{include.text!r} contains no bundle", include.at, hint)
            return None
        return path

    def _report_missing(self, include: Listed, origin: Origin) -> None:
        if (
            is_path(include.text)
            and (origin.path.parent / os.path.expanduser(include.text)).is_dir()
        ):
            message = f"the folder {include.text!r} contains no bundle"
            self._problems.add(
                message, include.at, f"expected one of {', '.join(BUNDLE_FILES)} in it"
            )
            return
        message = f"the bundle {include.text!r} does not exist"
        self._problems.add(message, include.at, self._hint(include.text, origin))

    def _hint(self, text: str, origin: Origin) -> str:
        name, colon, _ = text.partition(":")
        if is_path(text) or text.endswith(SUFFIXES) or "/" in name:
            path = Path(os.path.realpath(origin.path.parent / os.path.expanduser(text)))
            return f"searched {self._namespaces.shown(path, origin.file, origin.path)}"
        if colon:
            match = self._namespaces.find(origin.path, text, _FORMS, origin.name)
            if match.tried:
                shown = self._namespaces.shown
                return match.hint(lambda path: shown(path, origin.file, origin.path))
        known = ", ".join(self._namespaces.names) or "none"
        return (
            f"known bundles: {known}; write its source, or set it in your settings: "
            f"sources: {{{name}: git+https://…}}"
        )


def _bundle_file(path: Path) -> Path | None:
    """The document at a path: the file, the file with a suffix added, or the folder's bundle file."""
    path = Path(os.path.normpath(path))
    if path.is_dir():
        return bundle_in(path)
    forms = [path, *(path.with_name(f"{path.name}{suffix}") for suffix in SUFFIXES)]
    return next((file for file in forms if file.is_file()), None)
