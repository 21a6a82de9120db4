"""Finding and reading plan files: profiles by name, plans by path, and what they extend."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from amplifier_app.errors import ConfigError, Location
from amplifier_app.plan.merge import excluded_in, merge_documents, overlay_settings
from amplifier_app.plan.nodes import MapNode, Scalar, text_of
from amplifier_app.plan.places import SUFFIXES, find_profile, profile_in_collection, profile_names
from amplifier_app.plan.problems import Problems, suggest
from amplifier_app.plan.reading import MARKDOWN, Document, Reader
from amplifier_app.plan.scopes import Settings
from amplifier_app.plan.shapes import PLAN
from amplifier_app.plan.structure import check_complete

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Stage(NamedTuple):
    """What a plan has come to with one more file on top of those below it.

    Attributes:
        file: The file, as origins call it.
        tree: The merged tree up to and with it.
    """

    file: str
    tree: MapNode


class MergedPlan(NamedTuple):
    """A plan with everything it extends, before overrides, conditions and variables.

    Attributes:
        name: Its `name:`, else the profile's name or the file's stem.
        document: The merged tree in normalised form.
        folders: For every file as origins call it, the absolute folder it lies in.
        chain: The files in the order they were extended, the plan itself first.
        overlays: The settings files that lie on top, the widest scope first.
        sources: Where settings say modules come from, by module id, as it is written.
        display: What settings say about what is shown, and how.
        project: The folder of the trusted project that counted.
        files: Every file that was read, absolute.
        notes: Sentences on what is not used here, for a person.
        warnings: Sentences on what could be misspelt.
        texts: The text of every file as origins call it, so that problems can show its lines.
        stages: How it came to be, file by file, the lowest first.
    """

    name: str
    document: MapNode
    folders: dict[str, Path]
    chain: tuple[str, ...]
    overlays: tuple[str, ...] = ()
    sources: Mapping[str, Scalar] = MappingProxyType({})
    display: Mapping[str, str] = MappingProxyType({})
    project: Path | None = None
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    texts: Mapping[str, str] = MappingProxyType({})
    stages: tuple[Stage, ...] = ()


def read_profile(name: str, settings: Settings, at: Location | None = None) -> MergedPlan:
    """A profile with everything it extends and the settings on top.

    Args:
        name: The profile's name.
        settings: What lies on top; profiles of its project are found as well.
        at: Where the name is written, if it is in a file.

    Raises:
        ConfigError: There is no such profile.
        PlanError: It or something it extends is wrong.
    """
    path = find_profile(name, settings.project) if re.fullmatch(_NAME, name) else None
    if path is not None:
        chain = _Chain(settings)
        chain.read(str(path), path.absolute())
        return chain.merged(name, overlays=settings.files)
    hint = suggest(name, profile_names(settings.project))
    if "/" in name or name.endswith(SUFFIXES):
        hint = f"a file is given with '--plan {name}'"
    message = f"there is no profile {name!r}"
    if at is not None:
        settings.problems.add(message, at, hint)
        settings.problems.raise_if_any()
    raise ConfigError(message, hint=hint)


def read_plan(path: Path | str, settings: Settings) -> MergedPlan:
    """A plan file with everything it extends; of the settings only `sources` count.

    Raises:
        ConfigError: There is no such file.
        PlanError: It or something it extends is wrong.
    """
    given = Path(path).expanduser()
    chain = _Chain(settings)
    chain.read(str(given), given.absolute())
    return chain.merged(given.stem)


class _Chain:
    """A document and what it extends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._problems = Problems()
        self._reader = Reader(self._problems, settings.project)
        self._documents: list[Document] = []

    def read(self, file: str, path: Path) -> None:
        found: tuple[str, Path] | None = (file, path)
        while found is not None:
            self._documents.append(self._reader.read(*found, PLAN))
            found = self._extended()
        self._problems.raise_if_any()

    def merged(self, name: str, overlays: Sequence[Document] = ()) -> MergedPlan:
        tree = MapNode({}, self._documents[-1].tree.at)
        stages: list[Stage] = []
        for document in reversed(self._documents):
            tree = merge_documents(tree, document.tree, self._problems)
            stages.append(Stage(document.file, tree))
        self._problems.raise_if_any()
        warnings: list[str] = []
        excluded = excluded_in(document.tree for document in reversed(self._documents))
        for settings in overlays:
            tree, found = overlay_settings(tree, settings.tree, excluded)
            warnings += found
            stages.append(Stage(settings.file, tree))
        check_complete(tree, self._problems)
        self._problems.raise_if_any()
        own = text_of(self._documents[0].tree.items.get("name"))
        files = {
            file: path
            for one in (*self._documents, *self._settings.files)
            for file, path in {one.file: one.path, **one.others}.items()
        }
        return MergedPlan(
            name=own or name,
            document=tree,
            folders={file: path.parent for file, path in files.items()},
            chain=tuple(document.file for document in self._documents),
            overlays=tuple(settings.file for settings in overlays),
            sources=self._settings.sources,
            display=self._settings.display,
            project=self._settings.project,
            files=tuple(dict.fromkeys(files.values())),
            notes=(*self._settings.problems.notes, *self._problems.notes),
            warnings=tuple(warnings),
            texts={**self._settings.problems.texts, **self._problems.texts},
            stages=tuple(stages),
        )

    def _extended(self) -> tuple[str, Path] | None:
        """What the last document extends, if it does."""
        document = self._documents[-1]
        node = document.tree.items.get("extends")
        target = text_of(node)
        if node is None or target is None:
            return None
        found = _locate(target, document, self._settings.project)
        if found is None:
            if re.fullmatch(_NAME, target):
                hint = suggest(target, profile_names(self._settings.project))
            else:
                hint = "write './FILE' for a file beside this one"
            message = f"'extends' names {target!r}, which does not exist"
            self._problems.add(message, node.at, hint)
            return None
        seen = [one.path for one in self._documents]
        if found[1] in seen:
            names = [one.file for one in self._documents[seen.index(found[1]) :]]
            cycle = " → ".join([*names, names[0]])
            message = f"'extends' goes in a circle: {cycle}"
            self._problems.add(message, node.at, "remove one of them")
            return None
        return found


def _locate(target: str, document: Document, project: Path | None) -> tuple[str, Path] | None:
    if re.fullmatch(_NAME, target) and not target.endswith(SUFFIXES):
        path = find_profile(target, project, extended_by=document.path)
        return (str(path), path.absolute()) if path else None
    if target.startswith(("./", "../", "/", "~")):
        # Shown as the user named the first file: relative stays relative.
        shown = Path(document.file).parent / Path(target).expanduser()
        path = (document.path.parent / Path(target).expanduser()).resolve()
        return (str(shown), path) if path.is_file() else None
    if document.path.suffix == MARKDOWN:
        path = profile_in_collection(document.path, target)
        return (str(path), path) if path is not None else None
    return None
