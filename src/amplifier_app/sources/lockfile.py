"""The lock of a plan: what each of its modules was, exactly, when the lock was written.

    plan.yaml → plan.lock.json                     beside the plan
    <project>/locks/NAME.lock.json                 profile of a project
    <configuration>/locks/NAME.lock.json           any other profile

The file is JSON with sorted keys, so that it reads well as a diff. Passwords are masked in it,
and a folder stands in it as the plan names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amplifier_app.base import paths
from amplifier_app.base.atomic_write import write_whole
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan import ResolvedPlan

VERSION = 1
SUFFIX = ".lock.json"

_Digest: TypeAlias = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
# A version names a folder of the cache, and both go to uv.
_Version: TypeAlias = Annotated[str, Field(pattern=r"^[^\s/\\-][^\s/\\]*$")]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Commit: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class _Unreadable(Exception):
    """What was read is no such file; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class LockEntry(BaseModel):
    """One module.

    Attributes:
        kind: How it comes: git, folder, archive, package, bundled, installed.
        source: The source text as written, passwords masked; None if there is none.
        commit: The full commit of a git source.
        content: Hash of its files, for what does not come from a distribution.
        archive: Hash of an archive's bytes.
        distribution: The distribution it is in, for what comes from one.
        version: The version of that distribution.
        requirements: Name → version of what was installed for it.
        requires: What the plan adds to its requirements, as written → the commit of a repository.
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


class Lock(BaseModel):
    """What a plan's modules are locked to.

    Attributes:
        plan: The name of the plan it was made for.
        modules: Module id → entry.
        bundles: Source of a bundle that is fetched → entry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    FORMAT: ClassVar[str] = "amplifier-lock"
    WHAT: ClassVar[str] = "lock"
    WRITTEN_BY: ClassVar[str] = "amplifier plan lock"

    plan: str
    modules: Mapping[str, LockEntry] = Field(default_factory=dict)
    bundles: Mapping[str, LockEntry] = Field(default_factory=dict)

    def entry(self, module_id: str) -> LockEntry | None:
        """What a module is locked to; None if the lock does not know it."""
        return self.modules.get(module_id)

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Raises:
            ConfigError: The file is not there, damaged, something else, or of a newer program.
        """
        try:
            return cls._of(json.loads(path.read_bytes()))
        except FileNotFoundError:
            told = f"there is no such {cls.WHAT}", f"write it with: {cls.WRITTEN_BY}"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            told = f"cannot read the {cls.WHAT}: {reason}", None
        except json.JSONDecodeError as error:
            told = cls._damaged(f"line {error.lineno}, column {error.colno}: {error.msg.lower()}")
        except ValidationError as error:
            first = error.errors()[0]
            told = cls._damaged(f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}")
        except _Unreadable as error:
            told = str(error), error.hint
        except (ValueError, RecursionError):
            told = cls._damaged("it is not JSON")
        raise ConfigError(told[0], hint=told[1], location=Location(str(path)))

    @classmethod
    def _of(cls, data: Any) -> Self:
        if not isinstance(data, dict) or data.get("format") != cls.FORMAT:
            raise _Unreadable(f"this is not a {cls.WHAT} of Amplifier", "name another file")
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            raise _Unreadable(
                f"the {cls.WHAT} has format version {version}, and this program knows {VERSION}",
                f"update Amplifier, or remove it and write it anew: {cls.WRITTEN_BY}",
            )
        if version != VERSION:
            raise _Unreadable(*cls._damaged(f"its format version is {version!r}"))
        body = {key: value for key, value in data.items() if key not in ("format", "version")}
        return cls.model_validate(body)

    @classmethod
    def _damaged(cls, what: str) -> tuple[str, str]:
        return (
            f"the {cls.WHAT} is damaged: {what}",
            f"take it from version control, or remove it and write it anew: {cls.WRITTEN_BY}",
        )

    def to_json(self) -> str:
        """The text of the file."""
        data = {"format": self.FORMAT, "version": VERSION, **self.model_dump(exclude_defaults=True)}
        return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; its folder is made if it is not there.

        Raises:
            ConfigError: It cannot be written; what was there is still there.
        """
        write_whole(path, self.to_json())


def lock_path_for(plan: ResolvedPlan) -> Path:
    """Where the lock of a plan is, or would be."""
    return lock_path(Path(plan.merged.chain[0]), getattr(plan, "project", None))


def lock_path(file: Path, project: Path | None) -> Path:
    """Where the lock of a plan is, or would be.

    Args:
        file: The file of the plan.
        project: The folder of a trusted project.
    """
    file = file.absolute()
    name = f"{re.sub(r'[.](ya?ml|md)$', '', file.name)}{SUFFIX}"
    for profiles, home in _homes(project):
        if file.parent == profiles.absolute():
            return home / "locks" / name
    return file.with_name(name)


def _homes(project: Path | None) -> list[tuple[Path, Path]]:
    """Folders of profiles, each with the folder that has their locks."""
    homes = [
        (paths.user_profiles_dir(), paths.config_dir()),
        (paths.packaged_profiles_dir(), paths.config_dir()),
    ]
    return homes if project is None else [(project / "profiles", project), *homes]
