"""Where a module is looked for: one order, the first place that has something decides.

    1  environment   AMPLIFIER_MODULE_<ID>, the id in capitals, `-` and `.` as `_`
    2  workspace     .amplifier/modules/<id> of a trusted project
    3  settings      `sources:` of the settings; project-local over project over user
    4  plan          the module's `source`
    5  bundled       a module that ships with the program
    6  installed     an entry point of an installed distribution
    7  convention    an importable package `amplifier_module_<id>`

A place that has something which then cannot be had is an error. Going on to the next one
would quietly run another module than the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from amplifier_app.base import installed
from amplifier_app.base.errors import Location
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.resolved import Considered, Place

PREFIX = "AMPLIFIER_MODULE_"


class Override(Protocol):
    """A source that stands in for the plan's: `source`, with paths absolute, written `at`."""

    @property
    def source(self) -> str: ...

    @property
    def at(self) -> Location: ...


class Candidate(NamedTuple):
    """What one place has for a module.

    Attributes:
        place: Which.
        text: What is there, for a person.
        source: The source text to fetch; None for what is importable as it is.
        entry_point: Of what is importable as it is.
        distribution: The distribution it is in, if it is in one.
        version: The version of that distribution.
        at: Where a person wrote it, for what is wrong with it.
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
        environ: Where the variables are.
        workspace: The folder of a trusted project that holds a folder for each module.
        overrides: Module id → the source that settings name.
        origin: Where a module and its source stand in the plan; asked only for what is wrong.
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
        """What there is for a module, the one that decides first; each is looked for when due.

        Raises:
            SourceError: The workspace's folder for it is a link out of the workspace.
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
        own = installed.bundled().get(module_id)
        if own is not None:
            yield _of_installed("bundled", own)
        for found in installed.installed(module_id):
            yield _of_installed("installed", found)
        target = installed.by_convention(module_id)
        if target is not None:
            yield Candidate("convention", target.partition(":")[0], entry_point=target)

    def origin(self, module_id: str, hint: str | None) -> Location | None:
        """Where the plan names a module with this source."""
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
                reason = "the first that has it" if chosen else f"{first} comes before it"
                if place == first and not chosen:
                    reason = "another distribution comes before it on the path"
                rows.append(Considered(place, candidate.text, reason, chosen))
            if place not in found:
                rows.append(Considered(place, None, nothing))
        return tuple(rows)

    def _nothing(self, module_id: str) -> dict[Place, str]:
        """Every place in order, with what to say when it has nothing."""
        workspace = f"there is no {self._workspace / module_id}" if self._workspace else None
        return {
            "environment": f"{variable_of(module_id)} is not set",
            "workspace": workspace or "there is no trusted project",
            "settings": "no settings name a source for it",
            "plan": "the plan gives no source",
            "bundled": "it does not ship with the program",
            "installed": "no installed distribution offers it",
            "convention": f"there is no package {installed.conventional_name(module_id)}",
        }

    def _in_workspace(self, module_id: str) -> Path | None:
        if self._workspace is None:
            return None
        folder = self._workspace / module_id
        if not folder.is_dir():
            return None
        if not folder.resolve().is_relative_to(self._workspace.resolve()):
            # Trust covers what lies in the project, and not what a link in it leads to.
            raise SourceError(
                f"{folder} is a link out of the project",
                hint="name its target as the module's source instead",
            )
        return folder


def variable_of(module_id: str) -> str:
    """The environment variable that says where a module comes from."""
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
