"""Find what a project's documents and modules select outside of `.amplifier`, to cover it by trust and show it.

Documents are only read as data: nothing is imported, fetched or mounted, and they have no effect
yet. Errors in them are ignored here; using the document reports them.

The `pyproject.toml` of a module can require local folders, archives and repositories. Trust covers the
project's own, because their code runs when they are built and when they are imported.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from amplifier_app.base import paths
from amplifier_app.base.errors import Location
from amplifier_app.plan.documents.document import read_root
from amplifier_app.plan.documents.profile_paths import PATH_STARTS, SUFFIXES, profile_in_collection
from amplifier_app.plan.documents.reading import files_read_by
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.scorers import scorer_file
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    SourceSyntaxError,
    parse_source,
)
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS
from amplifier_app.plan.tree.interpolation import interpolate, names_in
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar, read_text
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.trust.content import Selected
from amplifier_core.module_sources import PARTS
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan

_CONFIG = {(place, "config") for place in (*PARTS, *ENTRY_SECTIONS)}
_URL = r"[A-Za-z][A-Za-z0-9+.-]*://"


class Fact(NamedTuple):
    """Something that a document selects, for display.

    Attributes:
        at: Where it is written, with the file name as given.
        what: `"module"`, `"source"`, `"extends"`, `"includes"`, `"excludes"`,
            `"readable"`, `"approval"`, `"sandbox"`, `"command"`, `"address"` or `"variable"`.
        text: The value as written.
    """

    at: Location
    what: str
    text: str


def selected_by(path: Path, data: bytes, project: Path | None = None) -> list[Selected]:
    """The files and folders that a document selects, wherever they are.

    Args:
        path: Absolute path of the document; paths in it are relative to its folder.
        data: Its content.
        project: The `.amplifier` folder of its project, whose agents it can refer to.
    """
    selected: list[Selected] = []
    for keys, node in _values(_tree(path.name, data)):
        text = _expanded_text(node)
        if text is None:
            continue
        if _is_source(keys):
            if (local := _local(text, path.parent)) is not None:
                selected.append(Selected(local))
        elif _is_scorer(keys):
            if (file := scorer_file(text, path.parent)) is not None:
                selected.append(Selected(file, document=file.suffix in SUFFIXES))
        elif keys == ("extends",) and text.startswith(PATH_STARTS):
            selected.append(Selected(path.parent / os.path.expanduser(text), document=True))
        elif keys == ("extends",) and (file := profile_in_collection(path, text)) is not None:
            selected.append(Selected(file, document=True))
    # An agent of the user, found by name, does not belong to the project.
    own = paths.config_dir() / "agents"
    files = [file for file in files_read_by(path, data, project) if not file.is_relative_to(own)]
    return [*selected, *(Selected(file, document=file.suffix in SUFFIXES) for file in files)]


def collect_facts(file: str, data: bytes) -> list[Fact]:
    """Return the selections of a document, in document order.

    Args:
        file: The document's name.
        data: Its content.
    """
    facts: list[Fact] = []
    for keys, node in _values(_tree(file, data)):
        if "sandbox" in keys:
            # It may be turned off, also by a plain `off`, which is not a string.
            key = " ".join(keys[keys.index("sandbox") + 1 :])
            value = "off" if node.value is False else str(node.value)
            facts.append(Fact(node.at, "sandbox", f"{key} {value}".strip()))
        text = read_text(node)
        if text is None:
            continue
        if keys[0] in ("namespaces", "namespace_root"):
            facts.append(Fact(node.at, "readable", text))
        elif keys[-1] == "module" or (len(keys) > 1 and keys[-1] in PARTS):
            facts.append(Fact(node.at, "module", text))
        elif _is_source(keys):
            facts.append(Fact(node.at, "source", text))
        elif keys == ("extends",):
            facts.append(Fact(node.at, "extends", text))
        elif keys[:1] == ("includes",):
            facts.append(Fact(node.at, "includes", text))
        elif keys == ("exclude",):
            facts.append(Fact(node.at, "excludes", text))
        elif keys[:1] == ("approvals",) or keys[-2:] == ("config", "mode"):
            facts.append(Fact(node.at, "approval", f"{''.join(keys[-1:])} {text}"))
        elif keys[-1:] == ("command",) or _is_scorer(keys):
            facts.append(Fact(node.at, "command", text))
        elif re.match(_URL, text):
            facts.append(Fact(node.at, "address", text))
        # In the text of a Markdown document, a variable is not expanded.
        names = [] if node.literal else dict.fromkeys(names_in(text))
        facts += [Fact(node.at, "variable", name) for name in names]
    return facts


def _tree(file: str, data: bytes) -> Node | None:
    return read_root(file, data, PLAN, Problems())


def _values(root: Node | None) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    """Every scalar with the keys that lead to it, without list indexes."""
    waiting: list[tuple[tuple[str, ...], Node]] = [] if root is None else [((), root)]
    while waiting:
        keys, node = waiting.pop()
        if isinstance(node, Scalar):
            if keys:
                yield keys, node
        elif isinstance(node, MapNode):
            waiting += [((*keys, key), value) for key, value in reversed(list(node.items.items()))]
        else:
            waiting += [(keys, value) for value in reversed(node.items)]


def _is_source(keys: tuple[str, ...]) -> bool:
    """Return True if the value at these keys is the source of a module or a plugin."""
    # Keys in a module's config are its own, but an agent or a module may be called "config", and a
    # namespace "source".
    if keys[0] == "namespaces" or any(pair in _CONFIG for pair in pairwise(keys)):
        return False
    return keys[-1] in ("source", *(f"{part}_source" for part in PARTS)) or (
        keys == ("plugins",) or (len(keys) == 2 and keys[0] == "sources")
    )


def _is_scorer(keys: tuple[str, ...]) -> bool:
    """Return True if the value at these keys computes a score; a text alone is short for a mapping."""
    return keys in (("scores",), ("scores", "run"))


def _expanded_text(node: Scalar) -> str | None:
    """The text with variables expanded where they are set."""
    filled = interpolate(node, os.environ, Problems())
    return read_text(filled)


def _local(text: str, folder: Path) -> Path | None:
    """The file or folder of a local source; None for other sources."""
    try:
        source = parse_source(text, folder)
    except SourceSyntaxError:
        return None
    if isinstance(source, ArchiveSource):
        return Path(source.location) if source.is_local else None
    return source.path if isinstance(source, FolderSource) else None


def sources_of_project(
    plan: ResolvedPlan, owns: Callable[[Path], bool]
) -> list[tuple[Location, Path]]:
    """The local module sources that documents of the project set, each with where it is set.

    Args:
        plan: A plan that may use the project's settings or profiles.
        owns: Returns whether a document belongs to the project.
    """
    named = [(node.at, read_text(node)) for keys, node in _values(plan.tree) if _is_source(keys)]
    named += [(override.at, override.source) for override in plan.sources.values()]
    return list(_named_by_project(named, owns, _local))


def scorers_of_project(
    plan: ResolvedPlan, owns: Callable[[Path], bool]
) -> list[tuple[Location, Path]]:
    """The files of functions and judges that documents of the project name, as `sources_of_project`."""
    named = [(node.at, read_text(node)) for keys, node in _values(plan.tree) if _is_scorer(keys)]
    return list(_named_by_project(named, owns, scorer_file))


def _named_by_project(
    named: list[tuple[Location, str | None]],
    owns: Callable[[Path], bool],
    find: Callable[[str, Path], Path | None],
) -> Iterator[tuple[Location, Path]]:
    """The files that `find` returns for the texts in documents of the project."""
    for at, text in named:
        file = Path(at.file)
        if text is not None and file.is_absolute() and owns(file):
            path = find(text, file.parent)
            if path is not None:
                yield at, path


_FILE_URL = re.compile(r"(?:git\+)?file:(?://[^/]*)?(/[^\s;#?@]*)")
_NAMED = re.compile(r"@\s*([./~][^\s;]*)")
_PATH = re.compile(r"(?:\.{0,2}|~)/|\.{1,2}$")


def local_requirements(module: Path) -> list[Path]:
    """The local files and folders that a module requires, directly or indirectly.

    Errors in a `pyproject.toml` are ignored here; installing the module reports them.

    Args:
        module: The module's folder; without a `pyproject.toml` it requires nothing.

    Returns:
        Absolute paths outside the folder.
    """
    required: dict[Path, None] = {}
    waiting = [module.resolve()]
    seen: set[Path] = set()
    while waiting:
        folder = waiting.pop()
        if folder in seen:
            continue
        seen.add(folder)
        for path in map(Path.resolve, _paths_named_in(folder)):
            if not path.is_relative_to(module.resolve()):
                required[path] = None
            waiting.append(path)
    return list(required)


def _paths_named_in(folder: Path) -> Iterator[Path]:
    project = _read(folder / "pyproject.toml")
    if not project:
        return
    for table in ("project", "build-system", "dependency-groups"):
        for _, text in _texts(project.get(table)):
            yield from (Path(unquote(path)) for path in _FILE_URL.findall(text))
            yield from (folder / os.path.expanduser(path) for path in _NAMED.findall(text))
    settings = to_mapping(to_mapping(project.get("tool")).get("uv"))
    for key, text in _texts(settings):
        if match := _FILE_URL.match(text):
            yield Path(unquote(match[1]))
        elif key in ("path", "find-links") or _PATH.match(text):
            yield folder / os.path.expanduser(text)
    members = to_mapping(settings.get("sources")).values()
    if any(to_mapping(member).get("workspace") for member in members):
        yield from _workspace_around(folder)


def _workspace_around(folder: Path) -> Iterator[Path]:
    """The root of the workspace that uv would find."""
    for parent in folder.parents:
        tool = to_mapping(_read(parent / "pyproject.toml").get("tool"))
        if "workspace" in to_mapping(tool.get("uv")):
            yield parent
            return


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string below a value, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
