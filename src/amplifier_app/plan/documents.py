"""Finding and reading plan files: profiles by name, plans by path, and what they extend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from amplifier_app import paths
from amplifier_app.errors import ConfigError, Location
from amplifier_app.plan.merge import merge_documents
from amplifier_app.plan.nodes import MapNode, text_of
from amplifier_app.plan.problems import Problems, suggest
from amplifier_app.plan.structure import check_complete, normalise
from amplifier_app.plan.yaml_reader import MAX_BYTES, read_yaml

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SUFFIXES = (".yaml", ".yml")


class ProfileFile(NamedTuple):
    """A profile that can be named.

    Attributes:
        name: The name it goes by.
        path: Its file.
        scope: `"user"` or `"packaged"`.
    """

    name: str
    path: Path
    scope: str


class MergedPlan(NamedTuple):
    """A plan with everything it extends, before overrides, conditions and variables.

    Attributes:
        name: Its `name:`, else the profile's name or the file's stem.
        document: The merged tree in normalised form.
        folders: For every file as origins call it, the absolute folder it lies in.
        chain: The files in the order they were extended, the plan itself first.
    """

    name: str
    document: MapNode
    folders: dict[str, Path]
    chain: tuple[str, ...]


class _Document(NamedTuple):
    file: str
    path: Path
    tree: MapNode


def profile_files() -> Iterator[ProfileFile]:
    """Every profile, the user's own first; a name may come twice, the first one wins."""
    for scope, folder in (
        ("user", paths.user_profiles_dir()),
        ("packaged", paths.packaged_profiles_dir()),
    ):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.suffix in _SUFFIXES and path.is_file():
                    yield ProfileFile(path.stem, path, scope)


def find_profile(name: str, *, not_in: Path | None = None) -> Path | None:
    """The file of a profile.

    Args:
        name: The profile's name, without folder and ending.
        not_in: A file that is not meant, so that a user's `default` can extend the
            packaged `default`.
    """
    for folder in (paths.user_profiles_dir(), paths.packaged_profiles_dir()):
        for suffix in _SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.is_file() and path != not_in:
                return path
    return None


def read_profile(name: str) -> MergedPlan:
    """
    Raises:
        ConfigError: There is no such profile.
        PlanError: It or something it extends is wrong.
    """
    path = find_profile(name) if re.fullmatch(_NAME, name) else None
    if path is None:
        known = sorted({profile.name for profile in profile_files()})
        hint = suggest(name, known)
        if "/" in name or name.endswith(_SUFFIXES):
            hint = f"a file is given with '--plan {name}'"
        raise ConfigError(f"there is no profile {name!r}", hint=hint)
    return _read_chain(str(path), path.absolute(), name)


def read_plan(path: Path | str) -> MergedPlan:
    """
    Raises:
        ConfigError: There is no such file.
        PlanError: It or something it extends is wrong.
    """
    given = Path(path).expanduser()
    return _read_chain(str(given), given.absolute(), given.stem)


def _read_chain(file: str, path: Path, name: str) -> MergedPlan:
    problems = Problems()
    documents = [_read(file, path, problems)]
    while (base := _extended(documents, problems)) is not None:
        documents.append(_read(*base, problems))
    problems.raise_if_any()
    tree = documents[-1].tree
    for document in reversed(documents[:-1]):
        tree = merge_documents(tree, document.tree, problems)
    check_complete(tree, problems)
    problems.raise_if_any()
    return MergedPlan(
        name=text_of(documents[0].tree.items.get("name")) or name,
        document=tree,
        folders={document.file: document.path.parent for document in documents},
        chain=tuple(document.file for document in documents),
    )


def _read(file: str, path: Path, problems: Problems) -> _Document:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot read the plan: {reason}", location=Location(file)) from error
    root = read_yaml(data, file, problems)
    return _Document(file, path, normalise(root, file, problems))


def _extended(documents: list[_Document], problems: Problems) -> tuple[str, Path] | None:
    """What the last document extends, if it does."""
    document = documents[-1]
    node = document.tree.items.get("extends")
    target = text_of(node)
    if node is None or target is None:
        return None
    found = _locate(target, document)
    if found is None:
        known = sorted({profile.name for profile in profile_files()})
        if re.fullmatch(_NAME, target):
            hint = suggest(target, known)
        else:
            hint = "write './FILE' for a file beside this one"
        problems.add(f"'extends' names {target!r}, which does not exist", node.at, hint)
        return None
    file, path = found
    seen = [one.path for one in documents]
    if path in seen:
        names = [one.file for one in documents[seen.index(path) :]]
        cycle = " → ".join([*names, names[0]])
        problems.add(f"'extends' goes in a circle: {cycle}", node.at, "remove one of them")
        return None
    return file, path


def _locate(target: str, document: _Document) -> tuple[str, Path] | None:
    if re.fullmatch(_NAME, target) and not target.endswith(_SUFFIXES):
        path = find_profile(target, not_in=document.path)
        return (str(path), path.absolute()) if path else None
    if target.startswith(("./", "../", "/", "~")):
        # Shown as the user named the first file: relative stays relative.
        shown = Path(document.file).parent / Path(target).expanduser()
        path = (document.path.parent / Path(target).expanduser()).resolve()
        return (str(shown), path) if path.is_file() else None
    return None
