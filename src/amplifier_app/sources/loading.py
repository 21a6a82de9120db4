"""Loads plans for commands, fetching included bundles by the rules of module sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amplifier_app.base.errors import AppError
from amplifier_app.plan import documents
from amplifier_app.plan import model as plans
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.problems import PlanError
from amplifier_app.plan.traffic import NO_TRAFFIC, Traffic

if TYPE_CHECKING:
    from amplifier_app.base.errors import Location
    from amplifier_app.plan.bundles import BundleFetcher
    from amplifier_app.plan.documents import MergedPlan
    from amplifier_app.plan.scopes import Settings


class Fetching(NamedTuple):
    """How to fetch the bundles that a plan includes.

    Attributes:
        offline: Use only the cache. Defaults to AMPLIFIER_OFFLINE.
        locked: Require every bundle to match the lock.
        keep: Use the lock, if there is one, for the bundles in it.
        lock: The lock file; None for the plan's own.
    """

    offline: bool | None = None
    locked: bool = False
    keep: bool = False
    lock: Path | None = None

    def open(self, project: Path | None) -> BundleFetcher:
        """A fetcher for the bundles of one plan."""
        # Imported here because most plans include no bundles.
        from amplifier_app.sources.bundles import Fetcher

        return Fetcher(**self._asdict(), project=project)


AS_ENVIRONMENT_SAYS = Fetching()


def load_plan(
    path: Path | str,
    *,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
) -> ResolvedPlan:
    """See `amplifier_app.plan.model.load_plan`."""
    return plans.load_plan(path, environ=environ, project=project, fetch=fetching.open)


def load_profile(
    name: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
) -> ResolvedPlan:
    """See `amplifier_app.plan.model.load_profile`."""
    return plans.load_profile(name, environ=environ, project=project, fetch=fetching.open)


def load(
    *,
    plan: Path | str | None = None,
    profile: str | None = None,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    keep_unset: bool = False,
    lenient: bool = False,
    traffic: Traffic = NO_TRAFFIC,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
) -> ResolvedPlan:
    """See `amplifier_app.plan.model.load`; errors also have the problems of the plan's modules."""
    request = partial(
        plans.load,
        plan=plan,
        profile=profile,
        provider=provider,
        model=model,
        sets=sets,
        environ=environ,
        project=project,
        keep_unset=keep_unset,
        traffic=traffic,
        fetch=fetching.open,
    )
    try:
        return request(lenient=lenient)
    except PlanError as error:
        # Imported here because only errors need it.
        from amplifier_app.sources.module_problems import with_module_problems

        try:
            everything = with_module_problems(request(lenient=True), error)
        except AppError:
            # The plan cannot be read far enough to have modules.
            everything = error
        raise everything from None


def read_source(source: str, at: Location, settings: Settings) -> MergedPlan:
    """See `amplifier_app.plan.documents.read_source`."""
    return documents.read_source(source, at, settings, fetch=AS_ENVIRONMENT_SAYS.open)
