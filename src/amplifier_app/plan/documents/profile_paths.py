"""Find profiles and agents by name: the project's, the user's own, the bundled ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.plan.tree.problems import suggest
from amplifier_support.named_tuple import NamedTuple

SUFFIXES = (".yaml", ".yml", ".md")
PATH_STARTS = ("./", "../", "/", "~")

# collections/NAME/profiles/FILE: from the file to the folder of collections.
_COLLECTION_LEVELS = 3


class ProfileFile(NamedTuple):
    """A profile file.

    Attributes:
        name: The name of the profile.
        path: Its file.
        scope: `"project"`, `"user"` or `"bundled"`.
    """

    name: str
    path: Path
    scope: str


def _profile_folders(project: Path | None = None) -> list[tuple[str, Path]]:
    """The scopes with their profile folders, the nearest first.

    Args:
        project: The folder of a trusted project.
    """
    folders = [("user", paths.user_profiles_dir()), ("bundled", paths.bundled_profiles_dir())]
    return folders if project is None else [("project", project / "profiles"), *folders]


def profile_files(project: Path | None = None) -> Iterator[ProfileFile]:
    """Every profile, the nearest scope first; of several with one name, the first wins."""
    for scope, folder in _profile_folders(project):
        if folder.is_dir():
            for path in sorted(folder.iterdir(), key=_by_name_and_suffix):
                if path.suffix in SUFFIXES and path.is_file():
                    yield ProfileFile(path.stem, path, scope)


def _by_name_and_suffix(path: Path) -> tuple[str, int]:
    known = path.suffix in SUFFIXES
    return path.stem, SUFFIXES.index(path.suffix) if known else -1


def find_profile(
    name: str, project: Path | None = None, *, extended_by: Path | None = None
) -> Path | None:
    """The file of a profile.

    Args:
        name: The profile's name, without folder and suffix.
        project: The folder of a trusted project.
        extended_by: The file that extends it. If it has the same name, the profile that it shadows
            is meant: a user's `default` extends the bundled `default`.
    """
    folders = [folder for _, folder in _profile_folders(project)]
    if extended_by is not None and extended_by.stem == name and extended_by.parent in folders:
        folders = folders[folders.index(extended_by.parent) + 1 :]
    for folder in folders:
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            if os.path.isfile(path) and path != extended_by:
                return path
    return None


def profile_names(project: Path | None = None) -> list[str]:
    """The names of all profiles, each once."""
    return sorted({profile.name for profile in profile_files(project)})


def agent_folders(project: Path | None = None) -> list[Path]:
    """The folders in which agents are found by name, the nearest first."""
    folder = paths.config_dir() / "agents"
    return [folder] if project is None else [project / "agents", folder]


def agent_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Every agent of the folders by name; the first folder wins."""
    files: dict[str, Path] = {}
    for folder in folders:
        if folder.is_dir():
            for path in sorted(folder.iterdir(), key=_by_name_and_suffix):
                if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith("."):
                    files.setdefault(path.stem, path)
    return files


def profile_in_collection(document: Path, text: str) -> Path | None:
    """Resolve `collection:name` or `collection:path` to a profile; see `in_collection`."""
    return in_collection(document, text, ("{}", "{}.md", "profiles/{}.md", "profiles/{}.yaml"))


def in_collection(
    document: Path, text: str, forms: Sequence[str] = ("{}",), own: str | None = None
) -> Path | None:
    """Resolve `collection:path` in a published document.

    Args:
        document: The document, absolute.
        text: The reference.
        forms: Patterns that expand a short path, in search order.
        own: The name of the collection whose root the document is, if any.

    Returns:
        The file in a folder of that name above the document, or next to a folder above it; None
        if there is none.
    """
    name, colon, rest = text.partition(":")
    if not colon or not name or "/" in name:
        return None
    roots = [document.parent] if name == own else []
    for folder in document.parents[:_COLLECTION_LEVELS]:
        roots += [folder] if folder.name == name else [folder / name]
    paths = (root / form.format(rest) for root in roots for form in forms)
    return next((Path(os.path.normpath(path)) for path in paths if path.is_file()), None)


def hint_for_missing(target: str, folder: Path, project: Path | None) -> str:
    """Return advice about an `extends` of a file in `folder` that names nothing."""
    if target.startswith(PATH_STARTS):
        return "a relative path starts at the folder of this file"
    for name in (target, *(f"{target}{suffix}" for suffix in SUFFIXES)):
        if (folder / name).is_file():
            return f"for the file next to this one, write './{name}'"
    if "/" in target or target.endswith(SUFFIXES):
        return "for a file next to this one, write './FILE'"
    return suggest(target, profile_names(project))
