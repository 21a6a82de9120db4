"""The lock file of a plan: the exact source, version and content of each of its modules.

    plan.yaml → plan.lock.json                     next to the plan
    <project>/locks/NAME.lock.json                 profile of a project
    <configuration>/locks/NAME.lock.json           any other profile

The file is JSON with sorted keys, so that diffs are readable. Passwords are masked, and folders
are written as in the plan.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.locks import changing_settings
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.source_spec import GitSource, Source
from amplifier_app.plan.traffic import MODULE as TRAFFIC_MODULE
from amplifier_app.sources.errors import DriftError
from amplifier_app.sources.requirements.names import distributions
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_support.files import read_file

VERSION = 1
SUFFIX = ".lock.json"
_MAX_BYTES = 16 * 1024 * 1024

_Digest: TypeAlias = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
# Versions are used as folder names in the cache, and both are passed to uv.
_Version: TypeAlias = Annotated[str, Field(pattern=r"^[^\s/\\-][^\s/\\]*$")]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Commit: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


Pins: TypeAlias = Mapping[str, Mapping[str, str]]
"""Name, such as `skill pdf`, → part, such as a file, → its text or digest."""


class LockEntry(BaseModel):
    """One module.

    Attributes:
        kind: Kind of source: git, folder, archive, package, bundled, installed.
        source: The source as written, passwords masked; None if there is none.
        commit: The full commit of a git source.
        content: Hash of its files, unless it comes from a distribution.
        archive: Hash of an archive's bytes.
        distribution: The distribution it comes from, if any.
        version: The version of that distribution.
        requirements: Name → version of what was installed for it.
        requires: Requirement added by the plan, as written → the commit, for a repository.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["bundled", "installed", "folder", "git", "archive", "package"]
    source: str | None = None
    commit: _Commit | None = None
    content: _Digest | None = None
    archive: _Digest | None = None
    distribution: str | None = None
    version: _Version | None = None
    requirements: Mapping[_Name, _Version] = Field(default_factory=dict)
    requires: Mapping[str, _Commit | None] = Field(default_factory=dict)


class LockedPrices(BaseModel):
    """The file of a provider's prices: their date, where they were read, and the hash of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    as_of: str
    source: str
    sha256: str


class Lock(BaseModel):
    """The lock of a plan.

    Attributes:
        plan: The name of the plan.
        modules: Module id → entry.
        bundles: Source of a fetched bundle → entry.
        pins: What modules bring from outside; None in a lock that was made without it.
        prices: Module id of a provider → the price list in use when the plan was locked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    FORMAT: ClassVar[str] = "amplifier-lock"
    WHAT: ClassVar[str] = "lock"
    WRITTEN_BY: ClassVar[str] = "amplifier plan lock"

    plan: str
    modules: Mapping[str, LockEntry] = Field(default_factory=dict)
    bundles: Mapping[str, LockEntry] = Field(default_factory=dict)
    pins: Pins | None = None
    prices: Mapping[str, LockedPrices] = Field(default_factory=dict)

    def entry(self, module_id: str) -> LockEntry | None:
        """The lock entry of a module; None if it has none."""
        return self.modules.get(module_id)

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Raises:
            ConfigError: The file is missing, damaged, not a lock, or of a newer program.
        """
        try:
            data = json.loads(read_lock(path))
            problem = cls._refusal(data)
            if problem is None:
                body = {key: data[key] for key in data if key not in ("format", "version")}
                return cls.model_validate(body)
        except FileNotFoundError:
            problem = f"the {cls.WHAT} does not exist", f"write it with: {cls.WRITTEN_BY}"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            problem = f"cannot read the {cls.WHAT}: {reason}", None
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            problem = cls._damaged(f"{where}: {error.msg.lower()}")
        except ValidationError as error:
            first = error.errors()[0]
            problem = cls._damaged(f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}")
        except (ValueError, RecursionError):
            problem = cls._damaged("not valid JSON")
        raise ConfigError(problem[0], hint=problem[1], location=Location(str(path)))

    @classmethod
    def _refusal(cls, data: Any) -> tuple[str, str] | None:
        """Describe what is wrong with the head of a lock, with the next step; None if nothing is."""
        if not isinstance(data, dict) or data.get("format") != cls.FORMAT:
            return f"not an Amplifier {cls.WHAT}", "specify another file"
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            return (
                f"the {cls.WHAT} has format version {version}; this program supports {VERSION}",
                f"update Amplifier, or remove the file and recreate it: {cls.WRITTEN_BY}",
            )
        return cls._damaged(f"its format version is {version!r}") if version != VERSION else None

    @classmethod
    def _damaged(cls, what: str) -> tuple[str, str]:
        return (
            f"the {cls.WHAT} is damaged: {what}",
            f"restore it from version control, or remove and recreate it: {cls.WRITTEN_BY}",
        )

    def to_json(self) -> str:
        """The text of the file."""
        data = {"format": self.FORMAT, "version": VERSION, **self.model_dump(exclude_defaults=True)}
        return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        """Write the file atomically, creating its folder if needed.

        Raises:
            ConfigError: It cannot be written; the old file is unchanged.
        """
        write_whole(path, self.to_json())

    def replace(self, path: Path, old: Self | None) -> bool:
        """Write the file unless it has changed since `old` was read from it; whether it was written.

        Raises:
            ConfigError: See `read` and `write`.
        """
        with changing_settings():
            if (self.read(path) if path.exists() else None) != old:
                return False
            self.write(path)
            return True


def read_lock(path: Path) -> bytes:
    """The content of a lock.

    Raises:
        OSError: It cannot be read; `strerror` says why.
    """
    data = read_file(path, _MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(errno.EINVAL, f"it is larger than {_MAX_BYTES // 1024 // 1024} MiB")
    return data


def lock_path_for(plan: ResolvedPlan) -> Path:
    """The path of a plan's lock, whether or not it exists."""
    return lock_path(Path(plan.merged.chain[0]), getattr(plan, "project", None))


def lock_path(file: Path, project: Path | None) -> Path:
    """The path of a plan's lock, whether or not it exists.

    Args:
        file: The plan's file.
        project: The folder of a trusted project.
    """
    file = file.absolute()
    name = f"{re.sub(r'[.](ya?ml|md)$', '', file.name)}{SUFFIX}"
    home = _home_of_profile(file, project)
    return file.with_name(name) if home is None else home / "locks" / name


def lock_command(plan: ResolvedPlan, lock: Path | None = None) -> str:
    """Return the command that writes the lock of a plan, by default the plan's own."""
    file = Path(plan.merged.chain[0]).absolute()
    is_profile = _home_of_profile(file, getattr(plan, "project", None)) is not None
    words = ["-P", file.stem] if is_profile else ["-f", os.path.relpath(file)]
    if lock is not None and lock.absolute() != lock_path_for(plan):
        words += ["-o", os.path.relpath(lock)]
    return shlex.join(["amplifier", "plan", "lock", *words])


def _home_of_profile(file: Path, project: Path | None) -> Path | None:
    """Return the folder that has `locks/` for a profile; None if the file is not one."""
    homes = _homes(project)
    return next((home for folder, home in homes if file.parent == folder.absolute()), None)


def _homes(project: Path | None) -> list[tuple[Path, Path]]:
    """Folders of profiles, each with the folder that has `locks/` for them."""
    homes = [
        (paths.user_profiles_dir(), paths.config_dir()),
        (paths.bundled_profiles_dir(), paths.config_dir()),
    ]
    return homes if project is None else [(project / "profiles", project), *homes]


LOOP_SUPPORT = "hooks-loop-support"
"""Applies settings of the session to an orchestrator that does not."""

UPDATE = "if the change is intended, update the lock: amplifier plan lock, with the same -f or -P"


def needs_no_lock(module_id: str, place: str) -> bool:
    """Return True if the program itself mounts a module, which no plan has to name."""
    return module_id in (TRAFFIC_MODULE, LOOP_SUPPORT) and place == "bundled"


def check_source(entry: LockEntry, kind: str, source: Source) -> None:
    """Check a source against the lock before fetching it.

    The location is not compared; the fetched content is, later.

    Raises:
        DriftError: Its kind or its commit differs from the lock.
    """
    _same("kind of source", entry.kind, kind)
    if isinstance(source, GitSource) and source.is_commit:
        _same("commit", entry.commit, source.ref)


def check_found(entry: LockEntry, source: ResolvedSource) -> None:
    """Check a resolved module against its lock entry.

    Raises:
        DriftError: It differs; the message names what differs.
    """
    _same("kind of source", entry.kind, source.kind)
    if entry.distribution is not None:
        _same("distribution", entry.distribution, source.distribution)
        _same("version", entry.version, source.version)
    if entry.commit is not None:
        _same("commit", entry.commit, source.commit)
    if entry.archive is not None:
        _same("archive", entry.archive, source.archive)
    if entry.content is not None:
        _same("content", entry.content, source.content_hash)
    for requirement in sorted(entry.requires.keys() ^ source.requires.keys()):
        locked, present = (
            requirement if requirement in side else None
            for side in (entry.requires, source.requires)
        )
        _same(f"'requires' {requirement}", locked, present)
    installed = source.requirements
    if installed != entry.requirements:
        # A package installed for the module elsewhere may be part of the environment here.
        versions = {**distributions(sys.path), **installed}
        for name in sorted({*installed, *entry.requirements}):
            _same(f"requirement {name}", entry.requirements.get(name), versions.get(name))


def _same(what: str, locked: str | None, actual: str | None) -> None:
    if locked != actual:
        raise DriftError(
            f"{what} differs from the lock: locked {locked or 'none'}, found {actual or 'none'}",
            hint=UPDATE,
        )
