"""Find and read plan files: profiles by name, plans by path, and the documents they extend."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan.documents.document import Document, Opened
from amplifier_app.plan.documents.profile_paths import (
    PATH_STARTS,
    SUFFIXES,
    find_profile,
    hint_for_missing,
    profile_files,
    profile_in_collection,
    profile_names,
)
from amplifier_app.plan.documents.reading import Reader
from amplifier_app.plan.documents.scopes import Settings
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.schema.rules import NAME, check_complete, missing_parts
from amplifier_app.plan.source_spec import FolderSource, SourceSyntaxError, parse_source
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, entry_key, entry_keys, list_entries
from amplifier_app.plan.tree.merge import (
    excluded_in,
    merge_documents,
    merge_nodes,
    overlay_settings,
    without_replaced_agents,
)
from amplifier_app.plan.tree.nodes import MapNode, Scalar, read_text, to_node
from amplifier_app.plan.tree.problems import Problem, Problems, suggest
from amplifier_app.plan.tree.yaml_reader import read_bytes
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.plan.documents.bundles import BundleFetcher, Bundles, OpenFetcher
    from amplifier_app.plan.documents.namespaces import Checkout
    from amplifier_app.plan.documents.plugins import Plugin, Plugins


class Stage(NamedTuple):
    """The state of a plan after merging one more file.

    Attributes:
        file: The name of the file in origins.
        tree: The merged tree up to and including it.
    """

    file: str
    tree: MapNode


class MergedPlan(NamedTuple):
    """A plan with everything it extends, before overrides, conditions and variables.

    Attributes:
        name: Its `name:`, else the profile's name or the file's stem.
        document: The merged tree in normalised form.
        folders: The absolute folder of every file, by its name in origins.
        chain: The files in the order they extend each other, the plan itself first.
        fetch: Creates the fetcher of bundles.
        overlays: The settings files applied on top, the widest scope first.
        sources: The sources that settings set for modules, by module id, as written.
        display: What settings set for `display`.
        project: The folder of the trusted project that was used.
        files: Every file that was read, absolute.
        warnings: Sentences about ignored or possibly misspelt keys, for the user.
        texts: The text of every file, by its name in origins, for excerpts in problems.
        stages: The result after each merged file, the lowest first.
        bundle: Whether the plan itself is a bundle.
        checkouts: The folders that were fetched for it; relative sources in them start there.
        fetched: The sources of the fetched bundles, with what each was resolved to.
        problems: Everything that is wrong with the documents; left out of the tree.
        plugins: The plugins by name.
        folder: The folder that relative sources start at if no file names them; None for the current directory.
    """

    name: str
    document: MapNode
    folders: dict[str, Path]
    chain: tuple[str, ...]
    fetch: OpenFetcher
    overlays: tuple[str, ...] = ()
    sources: Mapping[str, Scalar] = MappingProxyType({})
    display: Mapping[str, Any] = MappingProxyType({})
    project: Path | None = None
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
    texts: Mapping[str, str] = MappingProxyType({})
    stages: tuple[Stage, ...] = ()
    bundle: bool = False
    checkouts: tuple[Checkout, ...] = ()
    fetched: Mapping[str, Any] = MappingProxyType({})
    problems: tuple[Problem, ...] = ()
    plugins: Mapping[str, Plugin] = MappingProxyType({})
    folder: Path | None = None

    def source(self, text: str, file: str) -> str:
        """Resolve a source relative to the file that names it.

        Args:
            text: The source as written.
            file: The name of the file in origins.

        Raises:
            SourceSyntaxError: It is invalid or not allowed.
        """
        folder = self.folders.get(file) or self.folder or Path.cwd()
        parsed = parse_source(text, folder)
        if isinstance(parsed, FolderSource):
            for checkout in self.checkouts:
                if folder.is_relative_to(checkout.folder):
                    if not parsed.path.is_relative_to(checkout.folder):
                        raise SourceSyntaxError(f"{text!r} is outside the fetched files")
                    # As it was fetched, so that it can be locked and moved to another machine.
                    return checkout.find_source(parsed.path)
        return parsed.text


DEFAULT_PROFILE = "default"
"""The profile that is used if neither an option nor a setting names one."""

_STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def is_stdin(plan: Path | None) -> bool:
    """Return True if this plan file is stdin."""
    return str(plan) in _STDIN


def read_profile(
    name: str,
    settings: Settings,
    at: Location | None = None,
    *,
    fetch: OpenFetcher,
    keep_problems: bool = False,
) -> MergedPlan:
    """Read a profile with everything it extends, and apply the settings.

    Args:
        name: The profile's name.
        settings: The settings to apply; profiles of their project are found as well.
        at: Where the name is written, if it is in a file.
        fetch: Creates the fetcher of bundles.
        keep_problems: Whether the result has the problems; otherwise they are raised.

    Raises:
        ConfigError: The profile does not exist.
        PlanError: It or something it extends is wrong.
    """
    path = find_profile(name, settings.project) if re.fullmatch(NAME, name) else None
    if path is not None:
        chain = _Chain(settings, fetch, keep_problems)
        chain.read(str(path), path.absolute())
        return chain.merge(name, overlays=settings.files)
    hint = suggest(name, profile_names(settings.project))
    if "/" in name or name.endswith(SUFFIXES):
        hint = f"to use a file, pass '--plan {name}'"
    message = f"unknown profile {name!r}"
    if at is not None:
        settings.problems.add(message, at, hint)
        settings.problems.raise_if_any()
    raise ConfigError(message, hint=hint, is_usage=True)


def read_plan(
    path: Path | str, settings: Settings, *, fetch: OpenFetcher, keep_problems: bool = False
) -> MergedPlan:
    """Read a plan file with everything it extends and includes; only `sources` of settings apply.

    Args:
        path: The file, a folder with a bundle, a pipe such as `/dev/fd/63`, or `-` for stdin.
            Relative paths in a pipe are relative to the working directory.
        settings: The settings, for their `sources`.
        fetch: Creates the fetcher of bundles.
        keep_problems: Whether the result has the problems; otherwise they are raised.

    Raises:
        ConfigError: The file does not exist.
        PlanError: It or something it extends or includes is wrong.
    """
    source = Path(os.path.expanduser(path))
    if source.is_dir():
        from amplifier_app.plan.documents.namespaces import bundle_in

        source = bundle_in(source) or source
    chain = _Chain(settings, fetch, keep_problems)
    if is_stdin(source) or _is_stream(source):
        name = "stdin" if is_stdin(source) else str(source)
        file = Path("/dev/stdin") if is_stdin(source) else source
        data = read_bytes(file, name, PLAN.what, may_be_stream=True)
        chain.read(name, Path.cwd() / Path(name).name, data)
        return chain.merge(Path(name).name)
    if not source.is_file():
        reason = "is a directory" if source.is_dir() else "no such file or directory"
        at = Location(str(source))
        raise ConfigError(f"cannot read the plan: {reason}", location=at, is_usage=True)
    chain.read(str(source), source.absolute())
    return chain.merge(source.stem)


def _is_stream(path: Path) -> bool:
    """Return True if a file is a pipe or a device, or a name for what the process has open."""
    absolute = path.absolute()
    if absolute.is_relative_to("/dev") or absolute.is_relative_to("/proc"):
        return absolute.exists()
    return path.exists() and not path.is_file() and not path.is_dir()


def read_source(source: str, at: Location, settings: Settings, *, fetch: OpenFetcher) -> MergedPlan:
    """Like `read_plan`, for anything `includes` may name: a path, a source, or a bundle's name.

    Raises:
        ConfigError: A file cannot be read.
        PlanError: The bundle does not exist or is invalid.
    """
    chain = _Chain(settings, fetch)
    chain.read_source(source, at)
    return chain.merge(source)


class _Chain:
    """A document with everything it extends and includes."""

    def __init__(self, settings: Settings, fetch: OpenFetcher, keep_problems: bool = False) -> None:
        self._settings = settings
        self._keep_problems = keep_problems
        self._fetch = fetch
        self._fetched: Mapping[str, Any] = MappingProxyType({})
        self._problems = Problems()
        self._reader = Reader(self._problems, settings.project)
        self._documents: list[Document] = []

    def read(self, file: str, path: Path, data: bytes | None = None) -> None:
        self._read(self._reader.open(file, path, PLAN, data))

    def read_source(self, source: str, at: Location) -> None:
        opened = self._bundles.source(source, at, Path.cwd())
        if opened is None and not self._problems:
            self._problems.add(f"the bundle {source!r} is empty", at)
        self._problems.raise_if_any()
        assert opened is not None
        self._read(opened)

    def _read(self, opened: Opened) -> None:
        self._documents = self._read_layers(opened)
        while (base := self._base()) is not None:
            below = self._read_layers(self._reader.open(str(base), base, PLAN))
            self._note_replaced(below)
            self._documents += below
        self._raise_if_any()

    def _base(self) -> Path | None:
        """The default profile, if the plan is a bundle without a session: that is meant to be added to one."""
        missing = missing_parts(document.tree for document in self._documents)
        itself, known = self._documents[0], [document.path for document in self._documents]
        if not missing or not itself.bundle or self._problems:
            return None
        profiles = [*profile_files(self._settings.project)]
        for name in (read_text(self._settings.profile), DEFAULT_PROFILE):
            for profile in profiles:
                if profile.name == name and profile.path.absolute() not in known:
                    lacks = f"the bundle has no {' and no '.join(missing)}"
                    self._problems.note(f"{lacks}: added to the profile '{name}'", itself.tree.at)
                    return profile.path.absolute()
        return None

    def _note_replaced(self, below: Sequence[Document]) -> None:
        """Report the modules of the profile that the bundle replaces, such as the one that asks for approval."""
        known = {
            key for base in below for part in ENTRY_SECTIONS for key in entry_keys(base.tree, part)
        }
        for part in ENTRY_SECTIONS:
            for entry in (
                entry for document in self._documents for entry in list_entries(document.tree, part)
            ):
                if "source" in entry.items and (key := entry_key(entry)) in known:
                    self._problems.note(f"{key} replaces the profile's {key}", entry.at)

    def _read_layers(self, opened: Opened) -> list[Document]:
        """A document with those it extends and includes, the lowest precedence last."""
        chain = [opened]
        while (following := self._next_document(chain)) is not None:
            chain.append(self._reader.open(*following, PLAN))
        # The plan itself first, the lowest precedence last.
        layers: list[Opened] = []
        for document in chain:
            layers.append(document)
            if document.lists is not None:
                layers += reversed(self._bundles.included(document))
        finished: dict[Path, Document] = {}
        for document in layers:
            if document.path not in finished:
                finished[document.path] = self._reader.finish(document)
        documents = [finished[layer.path] for layer in layers]
        return [part for document in documents for part in (document, *self._plugins_in(document))]

    def _plugins_in(self, document: Document) -> list[Document]:
        """The documents of the plugins that a document names."""
        if "plugins" not in document.tree.items or not self._fetcher.reads_plugins:
            return []
        first = self._documents[0] if self._documents else document
        return self._plugins.documents(document, first.path)

    def _raise_if_any(self) -> None:
        if not self._keep_problems:
            self._problems.raise_if_any()

    @cached_property
    def _bundles(self) -> Bundles:
        # Imported on demand: only published documents include bundles.
        from amplifier_app.plan.documents.bundles import Bundles

        return Bundles(self._reader, self._settings.sources, self._fetcher)

    @cached_property
    def _fetcher(self) -> BundleFetcher:
        fetcher = self._fetch(self._settings.project)
        self._fetched = fetcher.found
        return fetcher

    @cached_property
    def _plugins(self) -> Plugins:
        from amplifier_app.plan.documents.plugins import Plugins

        return Plugins(self._reader, self._bundles, self._fetcher.check)

    def merge(self, name: str, overlays: Sequence[Document] = ()) -> MergedPlan:
        tree = MapNode({}, self._documents[-1].tree.at)
        stages: list[Stage] = []
        for document in reversed(self._documents):
            base = without_replaced_agents(tree, document.tree) if document.bundle else tree
            tree = merge_documents(base, document.tree, self._problems)
            stages.append(Stage(document.file, tree))
        context = [file for source in reversed(self._documents) for file in source.context]
        if context:
            from amplifier_app.plan.documents.includes import with_context

            tree = with_context(tree, context)
            stages[-1] = stages[-1]._replace(tree=tree)
        if sources := self._reader.namespace_sources:
            namespaces = to_node(sources, self._documents[0].tree.at, literal=True)
            if written := tree.items.get("namespaces"):
                namespaces = merge_nodes(namespaces, written)
            tree = tree.with_item("namespaces", namespaces)
            stages[-1] = stages[-1]._replace(tree=tree)
        self._raise_if_any()
        warnings: list[str] = []
        excluded = excluded_in(document.tree for document in reversed(self._documents))
        plugins: list[Document] = []
        for settings in overlays:
            below = self._plugins_in(settings)
            plugins += below
            for document in (*below, settings):
                tree, notes = overlay_settings(tree, document.tree, excluded)
                warnings += notes
                stages.append(Stage(document.file, tree))
        itself = self._documents[0]
        check_complete(tree, self._problems)
        self._raise_if_any()
        files = {
            file: path
            for source in (*self._documents, *self._settings.files, *plugins)
            for file, path in {source.file: source.path, **source.others}.items()
        }
        return MergedPlan(
            name=itself.tree.text("name") or name,
            document=tree,
            folders={file: path.parent for file, path in files.items()},
            chain=tuple(dict.fromkeys(document.file for document in self._documents)),
            overlays=tuple(settings.file for settings in overlays),
            sources=self._settings.sources,
            display=self._settings.display,
            project=self._settings.project,
            files=tuple(dict.fromkeys(files.values())),
            warnings=(*self._settings.problems.notes, *self._problems.notes, *warnings),
            texts={**self._settings.problems.texts, **self._problems.texts},
            stages=tuple(stages),
            bundle=itself.bundle,
            checkouts=self._reader.checkouts,
            fetched=self._fetched,
            fetch=self._fetch,
            problems=(*self._settings.problems.found, *self._problems.found),
            plugins=self._plugins.by_name if "plugins" in tree.items else {},
        )

    def _next_document(self, chain: Sequence[Opened]) -> tuple[str, Path] | None:
        """The document that the last one extends, if any."""
        document = chain[-1]
        node = document.root.items.get("extends") if isinstance(document.root, MapNode) else None
        target = read_text(node)
        if node is None or target is None:
            return None
        located = _locate(target, document, self._settings.project)
        if located is None:
            hint = hint_for_missing(target, document.path.parent, self._settings.project)
            message = f"'extends' names {target!r}, which does not exist"
            self._problems.add(message, node.at, hint)
            return None
        seen = [opened.path for opened in chain]
        if located[1] in seen:
            names = [opened.file for opened in chain[seen.index(located[1]) :]]
            self._problems.add_cycle("'extends'", names, node.at)
            return None
        return located


def _locate(target: str, document: Opened, project: Path | None) -> tuple[str, Path] | None:
    if re.fullmatch(NAME, target) and not target.endswith(SUFFIXES):
        path = find_profile(target, project, extended_by=document.path)
        return (str(path), path.absolute()) if path else None
    if target.startswith(PATH_STARTS):
        # Keep the form in which the user named the first file: relative stays relative.
        shown = Path(document.file).parent / os.path.expanduser(target)
        path = (document.path.parent / os.path.expanduser(target)).resolve()
        return (str(shown), path) if path.is_file() else None
    if document.origin.published:
        path = profile_in_collection(document.path, target)
        return (str(path), path) if path is not None else None
    return None
