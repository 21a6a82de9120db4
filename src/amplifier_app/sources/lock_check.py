"""Compares a module with its lock entry; under a lock, only what matches is run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from amplifier_app.plan.source_spec import GitSource, Source
from amplifier_app.plan.traffic import MODULE as TRAFFIC_MODULE
from amplifier_app.sources.errors import DriftError
from amplifier_app.sources.requirements.names import distributions
from amplifier_app.sources.resolved import ResolvedSource

if TYPE_CHECKING:
    from amplifier_app.sources.lockfile import LockEntry

LOOP_SUPPORT = "hooks-loop-support"
"""Applies settings of the session to an orchestrator that does not."""

UPDATE = "if the change is intended, update the lock: amplifier plan lock"


class ModuleLock(Protocol):
    """The lock entries of modules, such as `amplifier_app.sources.lockfile.Lock`."""

    def entry(self, module_id: str) -> LockEntry | None:
        """The lock entry of a module; None if it has none."""
        ...


def needs_no_lock(module_id: str, place: str) -> bool:
    """Whether the program itself mounts a module, which no plan has to name."""
    return module_id in (TRAFFIC_MODULE, LOOP_SUPPORT) and place == "bundled"


def unknown() -> DriftError:
    """The error for a module that is not in the lock."""
    return DriftError("this module is not in the lock", hint=UPDATE)


def check_source(entry: LockEntry, kind: str, source: Source) -> None:
    """Check a source against the lock before fetching it.

    The location is not compared; the fetched content is, later.

    Raises:
        DriftError: Its kind or its commit differs from the lock.
    """
    _same("kind of source", entry.kind, kind)
    if isinstance(source, GitSource) and source.is_commit:
        _same("commit", entry.commit, source.ref)


def check_found(entry: LockEntry, found: ResolvedSource) -> None:
    """Check a resolved module against its lock entry.

    Raises:
        DriftError: It differs; the message names what differs.
    """
    _same("kind of source", entry.kind, found.kind)
    if entry.distribution is not None:
        _same("distribution", entry.distribution, found.distribution)
        _same("version", entry.version, found.version)
    if entry.commit is not None:
        _same("commit", entry.commit, found.commit)
    if entry.archive is not None:
        _same("archive", entry.archive, found.archive)
    if entry.content is not None:
        _same("content", entry.content, found.content_hash)
    for one in sorted({*entry.requires, *found.requires}):
        _same(f"'requires' {one}", _listed(one, entry.requires), _listed(one, found.requires))
    installed = found.requirements
    if installed != entry.requirements:
        # A package installed for the module elsewhere may be part of the environment here.
        versions = {**distributions(sys.path), **installed}
        for name in sorted({*installed, *entry.requirements}):
            _same(f"requirement {name}", entry.requirements.get(name), versions.get(name))


def _listed(one: str, requires: Mapping[str, str | None]) -> str | None:
    return one if one in requires else None


def _same(what: str, locked: str | None, found: str | None) -> None:
    if locked != found:
        raise DriftError(
            f"{what} differs from the lock: locked {locked or 'none'}, found {found or 'none'}",
            hint=UPDATE,
        )
