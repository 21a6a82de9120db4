"""Whether a module is what the lock says; with a lock, nothing else is run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from amplifier_app.plan.source_spec import GitSource, Source
from amplifier_app.plan.traffic import MODULE as TRAFFIC_MODULE
from amplifier_app.sources.errors import DriftError
from amplifier_app.sources.requirement_names import distributions
from amplifier_app.sources.resolved import ResolvedSource

if TYPE_CHECKING:
    from amplifier_app.sources.lockfile import LockEntry

UPDATE = "if that is wanted, write the lock anew: amplifier plan lock"


class ModuleLock(Protocol):
    """What modules are locked to, such as `amplifier_app.sources.lockfile.Lock`."""

    def entry(self, module_id: str) -> LockEntry | None:
        """What a module is locked to; None if the lock does not know it."""
        ...


def needs_no_lock(module_id: str, place: str) -> bool:
    """Whether a module is of this program and no plan's: what `--record` and `--replay` mount."""
    return module_id == TRAFFIC_MODULE and place == "bundled"


def unknown() -> DriftError:
    """What to say of a module that the lock does not have."""
    return DriftError("the lock does not know this module", hint=UPDATE)


def check_source(entry: LockEntry, kind: str, source: Source) -> None:
    """Whether a source may be fetched, before anything is.

    What its text says of where it comes from is not looked at: what comes is.

    Raises:
        DriftError: It is of another kind than the locked one, or of another commit.
    """
    _same("kind of source", entry.kind, kind)
    if isinstance(source, GitSource) and source.is_commit:
        _same("commit", entry.commit, source.ref)


def check_found(entry: LockEntry, found: ResolvedSource) -> None:
    """Whether what was found is what the lock says.

    Raises:
        DriftError: It is not; the message says what differs.
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
        # What was installed for it there may be part of the environment here.
        versions = {**distributions(sys.path), **installed}
        for name in sorted({*installed, *entry.requirements}):
            _same(f"requirement {name}", entry.requirements.get(name), versions.get(name))


def _listed(one: str, requires: Mapping[str, str | None]) -> str | None:
    return one if one in requires else None


def _same(what: str, locked: str | None, found: str | None) -> None:
    if locked != found:
        raise DriftError(
            f"its {what} is not what the lock says: locked is {locked or 'none'}, "
            f"found is {found or 'none'}",
            hint=UPDATE,
        )
