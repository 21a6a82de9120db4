"""Skills in folders, in the format of agentskills.io: a folder with `SKILL.md`, whose front matter has a name and a
description."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard, cast

from amplifier_support.files import open_regular, system_errors_as
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.project_folders import is_shared
from amplifier_support.text import lazy_pattern, printable

FILE = "SKILL.md"
MAX_BYTES = 200_000
"""Bytes of a `SKILL.md`."""
_MAX_DEPTH, _MAX_FOLDERS = 6, 2000
_MAX_FILES = 100
"""Files of a skill that are named to the model."""
_IGNORED = frozenset({".git", "node_modules", "__pycache__"})
_OF_PROJECT = (".agents/skills", ".amplifier/skills", ".claude/skills")
_OF_USER = ("~/.agents/skills", "~/.claude/skills")
_SCANNED = ("project", "user")
"""The origins of folders that contain skills and are none themselves."""
_NAME = lazy_pattern(r"[a-z0-9]+(-[a-z0-9]+)*")
_MAX_NAME, _MAX_DESCRIPTION, _MAX_COMPATIBILITY = 64, 1024, 500
_KEYS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
_FRONT_MATTER = lazy_pattern(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)


class InvalidSkill(Exception):
    """A folder is not a skill that can be used; the message says why."""


class Root(NamedTuple):
    """A folder with skills.

    Attributes:
        folder: The folder.
        origin: Where it belongs: `project`, `user`, `plan`, or the name of a plugin.
        bounds: A folder that no skill may lead out of; None without one.
    """

    folder: str
    origin: str
    bounds: str | None = None


class Skill(NamedTuple):
    """A skill.

    Attributes:
        name: Its name, which is unique in a catalogue.
        description: What it is for.
        folder: Its folder, absolute.
        origin: See `Root`.
        warnings: What its author should change.
    """

    name: str
    description: str
    folder: str
    origin: str
    warnings: tuple[str, ...] = ()


class Catalogue(NamedTuple):
    """The skills of some folders.

    Attributes:
        skills: The skills by name; the first of a name counts.
        problems: A line for each folder that is left out.
    """

    skills: dict[str, Skill]
    problems: list[str]


def list_roots(
    project_folders: Iterable[str],
    config_dir: str | None,
    extra: Iterable[str] = (),
    plugins: Mapping[str, Iterable[str | Path]] | None = None,
) -> list[Root]:
    """The folders to look in, the nearest first.

    Args:
        project_folders: The folders of a trusted project, from its root to the working directory.
        config_dir: The user's own configuration folder.
        extra: Folders that the plan names.
        plugins: The folders of plugins, by the plugin's name.
    """
    roots = [Root(os.path.expanduser(folder), "plan") for folder in extra]
    folders = [*project_folders]
    for folder in folders[::-1]:
        roots += [Root(os.path.join(folder, name), "project", folders[0]) for name in _OF_PROJECT]
    if config_dir is not None:
        roots.append(Root(os.path.join(config_dir, "skills"), "user"))
    # AMPLIFIER_HOME stands for everything of the user.
    if not os.environ.get("AMPLIFIER_HOME"):
        roots += [Root(os.path.expanduser(name), "user") for name in _OF_USER]
    for name, paths in (plugins or {}).items():
        roots += [Root(str(path), name, str(path)) for path in paths]
    return roots


def find_skills(roots: Iterable[Root]) -> Catalogue:
    """The skills below some folders; invalid ones are reported, never used."""
    skills: dict[str, Skill] = {}
    problems: list[str] = []
    seen: set[str] = set()
    for root in roots:
        for folder in _skill_folders(root, seen):
            try:
                skill = read_skill(folder, root.origin)
            except InvalidSkill as error:
                problems.append(f"{printable(folder)}: {error}")
                continue
            skills.setdefault(skill.name, skill)
    return Catalogue(skills, problems)


def _skill_folders(root: Root, seen: set[str]) -> Iterator[str]:
    """Folders with a `SKILL.md`; what is below one belongs to it."""
    waiting, count = [(root.folder, 0)], 0
    while waiting and count < _MAX_FOLDERS:
        folder, depth = waiting.pop(0)
        count += 1
        real = os.path.realpath(folder)
        is_outside = root.bounds is not None and not Path(real).is_relative_to(root.bounds)
        if real in seen or is_outside:
            continue
        seen.add(real)
        try:
            with os.scandir(real) as entries:
                names = {entry.name: entry.is_dir() for entry in entries}
        except OSError:  # it does not exist, or is not ours to read
            continue
        if (depth or root.origin not in _SCANNED) and FILE in names:
            yield real
        elif depth < _MAX_DEPTH and not (depth and is_shared(real)):
            waiting += [
                (os.path.join(real, name), depth + 1)
                for name in sorted(names)
                if names[name] and name not in _IGNORED
            ]


def read_skill(folder: str, origin: str = "plan") -> Skill:
    """The skill in a folder.

    Raises:
        InvalidSkill: It has no description, or cannot be read.
    """
    fields, _ = _read(folder)
    base = os.path.basename(os.path.normpath(folder))
    # Authors write titles as names; programs that take the folder's name accept these.
    names = {"name": base} if _is_name(base) and not _is_name(fields.get("name")) else {}
    name, text = read_name_and_description({**fields, **names}, base)
    return Skill(name, text, folder, origin, tuple(_warnings(fields, base)))


def read_name_and_description(fields: Mapping[str, Any], default: str) -> tuple[str, str]:
    """Return the name and the description, on one line, in the front matter of a skill.

    Args:
        fields: The front matter.
        default: The name to use if there is none.

    Raises:
        InvalidSkill: One of them is missing or invalid.
    """
    name, description = fields.get("name", default), fields.get("description")
    if not _is_name(name):
        raise InvalidSkill(_describe_name(name))
    if not isinstance(description, str) or not description.strip():
        raise InvalidSkill(
            "description: it is missing, so no model would know when to use the skill"
        )
    return name, " ".join(printable(description).split())[:_MAX_DESCRIPTION]


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _MAX_NAME and bool(_NAME.fullmatch(value))


def _describe_name(name: Any) -> str:
    expected = f"at most {_MAX_NAME} lower-case letters, digits and single hyphens"
    return f"name: expected {expected}, got {printable(str(name))[:80]!r}"


def _warnings(fields: dict[str, Any], base: str) -> Iterator[str]:
    if "name" not in fields:
        yield "name: it is missing; the folder's name is used"
    elif not _is_name(name := fields["name"]):
        yield f"{_describe_name(name)}; the folder's name is used"
    elif name != base:
        yield f"name: {name!r} differs from the folder's name {base!r}"
    if len(fields["description"]) > _MAX_DESCRIPTION:
        yield f"description: it has more than {_MAX_DESCRIPTION:,} characters"
    compatibility = fields.get("compatibility")
    if compatibility is not None and (
        not isinstance(compatibility, str) or len(compatibility) > _MAX_COMPATIBILITY
    ):
        yield f"compatibility: expected text of at most {_MAX_COMPATIBILITY} characters"
    if not isinstance(fields.get("metadata", {}), dict):
        yield "metadata: expected a mapping"
    unknown = sorted(str(key) for key in fields.keys() - _KEYS)
    if unknown:
        yield f"unknown keys: {', '.join(unknown)}"


def read_instructions(skill: Skill) -> str:
    """The text of a skill, without its front matter.

    Raises:
        InvalidSkill: It can no longer be read.
    """
    return _read(skill.folder)[1].strip()


def list_files(skill: Skill) -> list[str]:
    """The other files of a skill, relative to its folder; at most `_MAX_FILES`."""
    return list(islice((path for path in _files(skill) if path != FILE), _MAX_FILES))


def hash_files(skill: Skill) -> dict[str, str]:
    """Return the SHA-256 of every file of a skill, by its path in the folder.

    Raises:
        InvalidSkill: One cannot be read.
    """
    digests: dict[str, str] = {}
    for relative in _files(skill):
        path = os.path.join(skill.folder, relative)
        with (
            system_errors_as(InvalidSkill, f"cannot read {printable(path)}"),
            open(open_regular(path, os.O_RDONLY), "rb") as file,
        ):
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests[relative] = f"sha256:{digest}"
    return digests


def _files(skill: Skill) -> Iterator[str]:
    """Yield the files of a skill, relative to its folder, in the order of names."""
    for folder, folders, names in os.walk(skill.folder):
        folders[:] = sorted(name for name in folders if name not in _IGNORED)
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), skill.folder)


def _read(folder: str) -> tuple[dict[str, Any], str]:
    """The front matter of a `SKILL.md`, and the text below it."""
    path = os.path.join(folder, FILE)
    with (
        system_errors_as(InvalidSkill, f"cannot read {FILE}"),
        open(open_regular(path, os.O_RDONLY), "rb") as file,
    ):
        data = file.read(MAX_BYTES + 1)
    return parse_skill(data)


def parse_skill(data: bytes) -> tuple[dict[str, Any], str]:
    """Return the front matter in the content of a `SKILL.md`, and the text below it.

    Raises:
        InvalidSkill: It is too long, or has no valid front matter.
    """
    if len(data) > MAX_BYTES:
        raise InvalidSkill(f"{FILE} is larger than {MAX_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidSkill(f"{FILE} is not UTF-8 text") from error
    import yaml  # A session without skills, with a bundled profile, reads no YAML.

    match = _FRONT_MATTER.match(text)
    if match is None:
        raise InvalidSkill(f"{FILE} does not begin with front matter between two lines '---'")
    try:
        # A few lines of aliases stand for gigabytes of text once they are written out.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(match[1])):
            raise InvalidSkill("front matter: aliases are not supported")
        fields: Any = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InvalidSkill(f"front matter: not valid YAML: {problem[:200]}") from error
    if not isinstance(fields, dict):
        raise InvalidSkill("front matter: expected a mapping")
    return cast("dict[str, Any]", fields), text[match.end() :]
