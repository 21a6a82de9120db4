"""The search order of modules; the first match wins.

    1  environment   AMPLIFIER_MODULE_<ID>, the id in capitals, `-` and `.` as `_`
    2  workspace     .amplifier/modules/<id> of a trusted project
    3  settings      `sources:` of the settings; project-local over project over user
    4  plan          the module's `source`
    5  bundled       a module that ships with the program
    6  installed     an entry point of an installed distribution
    7  folders       a project `amplifier-module-<id>` in a folder of AMPLIFIER_MODULES
    8  convention    an importable package `amplifier_module_<id>`

If the first match is unavailable, that is an error: falling back to the next place would
silently run a different module than the requested one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from amplifier_app.base import installed
from amplifier_app.base.errors import Location
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.resolved import Considered, Place
from amplifier_core.discovery import conventional_name, project_name

PREFIX = "AMPLIFIER_MODULE_"


class Override(Protocol):
    """A source that replaces the plan's: `source`, with absolute paths, is set `at` a location."""

    @property
    def source(self) -> str: ...

    @property
    def at(self) -> Location: ...


class Candidate(NamedTuple):
    """What one place has for a module.

    Attributes:
        place: The place.
        text: What it has, for display.
        source: The source to fetch; None for a module that is importable already.
        entry_point: Entry point of a module that is importable already.
        distribution: The distribution it is in, if any.
        version: The version of that distribution.
        at: Where it is set, for error messages.
    """

    place: Place
    text: str
    source: str | None = None
    entry_point: str | None = None
    distribution: str | None = None
    version: str | None = None
    at: Location | None = None


class Places:
    """The places of one session.

    Args:
        environ: The environment variables.
        workspace: The folder of a trusted project with one folder for each module.
        overrides: Module id → source from settings.
        origin: Returns where the plan has a module with this source; called for errors only.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        workspace: Path | None = None,
        overrides: Mapping[str, Override] | None = None,
        origin: Callable[[str, str | None], Location | None] = lambda module_id, source: None,
    ) -> None:
        self._environ = environ
        self._workspace = workspace
        self._overrides = overrides or {}
        self._origin = origin

    def candidates(self, module_id: str, hint: str | None) -> Iterator[Candidate]:
        """What each place has for a module, in search order and computed lazily.

        Raises:
            SourceError: Its workspace folder is a link out of the workspace.
        """
        named = self._environ.get(variable_of(module_id))
        if named:
            yield Candidate("environment", named, named)
        folder = self._in_workspace(module_id)
        if folder is not None:
            yield Candidate("workspace", str(folder), str(folder))
        override = self._overrides.get(module_id)
        if override is not None:
            yield Candidate("settings", override.source, override.source, at=override.at)
        if hint is not None:
            yield Candidate("plan", hint, hint)
        own = installed.bundled_modules().get(module_id)
        if own is not None:
            yield _of_installed("bundled", own)
        for found in installed.modules_on_path(module_id):
            yield _of_installed("installed", found)
        project = self._in_folders(module_id)
        if project is not None:
            yield Candidate("folders", str(project), str(project))
        target = installed.by_convention(module_id)
        if target is not None:
            yield Candidate("convention", target.partition(":")[0], entry_point=target)

    def origin(self, module_id: str, hint: str | None) -> Location | None:
        """Where the plan has a module with this source."""
        return self._origin(module_id, hint)

    def considered(self, module_id: str, hint: str | None) -> tuple[Considered, ...]:
        """Every place with what it has for a module."""
        found: dict[Place, list[Candidate]] = {}
        for candidate in self.candidates(module_id, hint):
            found.setdefault(candidate.place, []).append(candidate)
        first = next(iter(found), None)
        rows: list[Considered] = []
        for place, nothing in self._nothing(module_id).items():
            for index, candidate in enumerate(found.get(place, ())):
                chosen = place == first and index == 0
                reason = "first match" if chosen else f"{first} takes precedence"
                if place == first and not chosen:
                    reason = "another distribution precedes it on the path"
                rows.append(Considered(place, candidate.text, reason, chosen))
            if place not in found:
                rows.append(Considered(place, None, nothing))
        return tuple(rows)

    def _nothing(self, module_id: str) -> dict[Place, str]:
        """Every place in order, with the reason to show if it has nothing."""
        workspace = f"no folder {self._workspace / module_id}" if self._workspace else None
        return {
            "environment": f"{variable_of(module_id)} is not set",
            "workspace": workspace or "no trusted project",
            "settings": "no source in settings",
            "plan": "no source in the plan",
            "bundled": "not bundled",
            "installed": "not in any installed distribution",
            "folders": self._nothing_in_folders(module_id),
            "convention": f"no package {conventional_name(module_id)}",
        }

    def _in_folders(self, module_id: str) -> Path | None:
        if not self._environ.get(installed.FOLDERS):
            return None
        return installed.modules_in_folders(self._environ).get(module_id)

    def _nothing_in_folders(self, module_id: str) -> str:
        listed = self._environ.get(installed.FOLDERS, "")
        if not listed:
            return f"{installed.FOLDERS} is not set"
        relative = [one for one in listed.split(os.pathsep) if one and not os.path.isabs(one)]
        ignored = f"; ignored, as it is relative: {relative[0]}" if relative else ""
        return f"no {project_name(module_id)} in {installed.FOLDERS}{ignored}"

    def _in_workspace(self, module_id: str) -> Path | None:
        if self._workspace is None:
            return None
        folder = self._workspace / module_id
        if not folder.is_dir():
            return None
        if not folder.resolve().is_relative_to(self._workspace.resolve()):
            # Trust covers what is in the project, not the target of a link out of it.
            raise SourceError(
                f"{folder} is a link out of the project",
                hint="Set its target as the module's source instead",
            )
        return folder


def variable_of(module_id: str) -> str:
    """The environment variable that sets a module's source."""
    return PREFIX + module_id.upper().replace("-", "_").replace(".", "_")


def _of_installed(place: Place, found: installed.Installed) -> Candidate:
    text = f"{found.distribution} {found.version}"
    return Candidate(
        place,
        text,
        entry_point=found.entry_point,
        distribution=found.distribution,
        version=found.version,
    )
