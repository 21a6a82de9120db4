"""Loads plans for commands, fetching included bundles by the rules of module sources."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.documents import plan_files
from amplifier_app.plan.documents.plan_files import DEFAULT_PROFILE
from amplifier_app.plan.documents.scopes import Settings, read_settings
from amplifier_app.plan.model import ResolvedPlan, apply_overrides
from amplifier_app.plan.traffic import NO_TRAFFIC, Traffic
from amplifier_app.plan.tree.nodes import read_text
from amplifier_app.plan.tree.problems import PlanError
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.base.errors import Location
    from amplifier_app.plan.documents.bundles import BundleFetcher
    from amplifier_app.plan.documents.plan_files import MergedPlan


class Fetching(NamedTuple):
    """The settings for fetching the bundles that a plan includes.

    Attributes:
        offline: Use only the cache. Defaults to AMPLIFIER_OFFLINE.
        locked: Require every bundle to match the lock.
        keep: Use the lock, if there is one, for the bundles in it.
        lock: The lock file; None for the plan's own.
        plugins: Whether to read the plugins that it names.
    """

    offline: bool | None = None
    locked: bool = False
    keep: bool = False
    lock: Path | None = None
    plugins: bool = True

    def open(self, project: Path | None) -> BundleFetcher:
        """A fetcher for the bundles of one plan."""
        # Imported here because most plans include no bundles.
        from amplifier_app.sources.bundles import Fetcher

        return Fetcher(**self._asdict(), project=project)


AS_ENVIRONMENT_SAYS = Fetching()
_REMOTE = ("git+", "https:/", "http:/")


def load_plan(
    path: Path | str,
    *,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
    keep_problems: bool = False,
) -> ResolvedPlan:
    """Load a plan file with everything it extends and includes. Settings do not apply, except for
    `sources`, and for providers if the plan has none.

    Args:
        path: The file.
        environ: See `ResolvedPlan`.
        project: The folder of a trusted project, whose profiles it can extend.
        fetching: How to fetch the bundles that it includes.
        keep_problems: Whether `resolve` raises the problems, along with its own.

    Raises:
        ConfigError: The file cannot be read.
        PlanError: Its structure is invalid; with all problems.
    """
    if str(path).startswith(_REMOTE):
        # A path has lost one of two slashes.
        source = re.sub(":/(?!/)", "://", str(path))
        raise ConfigError(
            f"a plan is a file on this machine, not {source!r}",
            hint=f"Import the bundle: amplifier plan import {source} -o plan.yaml",
            is_usage=True,
        )
    settings = read_settings(project, keep_problems=keep_problems)
    merged = plan_files.read_plan(path, settings, fetch=fetching.open, keep_problems=keep_problems)
    return ResolvedPlan(merged, environ=environ)


def load_profile(
    name: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
    keep_problems: bool = False,
) -> ResolvedPlan:
    """Load a profile by name and apply the settings. The project's profile wins over the user's,
    which wins over the bundled one.

    Args:
        name: The profile; by default the one that the nearest settings name.
        environ: See `ResolvedPlan`.
        project: The folder of a trusted project. Without it, no project is used.
        fetching: How to fetch the bundles that it includes.
        keep_problems: Whether `resolve` raises the problems, along with its own.

    Raises:
        ConfigError: The profile does not exist.
        PlanError: The structure of the profile or of the settings is invalid; with all problems.
    """
    settings = read_settings(project, keep_problems=keep_problems)
    at = None
    if name is None:
        named = settings.profile
        name = read_text(named) or DEFAULT_PROFILE
        at = named.at if named is not None else None
    merged = plan_files.read_profile(
        name, settings, at, fetch=fetching.open, keep_problems=keep_problems
    )
    return ResolvedPlan(merged, environ=environ)


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
    adds_provider: bool = False,
    without: Collection[str] = (),
    reads_project: bool | None = None,
    folder: Path | None = None,
) -> ResolvedPlan:
    """Load and resolve the plan that a command asks for, or else the default profile.

    Args:
        plan: A plan file; settings do not apply.
        profile: A profile; settings apply.
        provider: See `apply_overrides`.
        model: See `apply_overrides`.
        sets: See `apply_overrides`.
        environ: See `ResolvedPlan`.
        project: The folder of a trusted project. Without it, no project is used.
        keep_unset: See `ResolvedPlan`.
        lenient: See `ResolvedPlan`.
        traffic: What to record or replay.
        fetching: How to fetch the bundles that it includes.
        adds_provider: See `amplifier_app.plan.overrides.Overrides`.
        without: See `amplifier_app.plan.overrides.Overrides`.
        reads_project: See `amplifier_app.plan.overrides.Overrides`.
        folder: See `amplifier_app.plan.documents.plan_files.MergedPlan`.

    Raises:
        ConfigError: Both a plan and a profile are given, or one cannot be found.
        PlanError: The plan is invalid; with all problems, also those of its modules.
    """
    if plan is not None and profile is not None:
        raise ConfigError(
            "a plan and a profile are mutually exclusive",
            hint="Give only one of them.",
            is_usage=True,
        )
    if plan is not None:
        loaded = load_plan(
            plan, environ=environ, project=project, fetching=fetching, keep_problems=True
        )
    else:
        loaded = load_profile(
            profile, environ=environ, project=project, fetching=fetching, keep_problems=True
        )
    changed = apply_overrides(loaded, provider=provider, model=model, sets=sets)
    changed.merged = changed.merged._replace(folder=folder)
    changed.keep_unset, changed.lenient = keep_unset, lenient
    changed.chosen = changed.chosen._replace(
        traffic=traffic,
        adds_provider=adds_provider,
        without=frozenset(without),
        reads_project=reads_project,
    )
    try:
        return changed.resolve()
    except PlanError as error:
        # Imported here because only errors need it.
        from amplifier_app.sources.module_problems import with_module_problems

        changed.lenient = True
        raise with_module_problems(changed, error) from None


def read_source(source: str, at: Location, settings: Settings) -> MergedPlan:
    """See `amplifier_app.plan.documents.plan_files.read_source`."""
    return plan_files.read_source(source, at, settings, fetch=AS_ENVIRONMENT_SAYS.open)
