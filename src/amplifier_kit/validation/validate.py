"""Checks a module's folder, then runs its other checks in a child process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.checks import Check, Report
from amplifier_app.plan.requirements import PlanRequirement
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetching import Fetcher
from amplifier_app.sources.requirements.dependencies import DependencyCache
from amplifier_app.sources.requirements.layout import Layout, find_layout
from amplifier_app.sources.requirements.names import distributions, required_by
from amplifier_app.sources.requirements.preferred_path import preferred_in
from amplifier_core.discovery import ENTRY_POINT_GROUP
from amplifier_kit.validation.advice import ASKS
from amplifier_kit.validation.isolation import MEMORY_BYTES, Tried, try_out
from amplifier_kit.validation.keywords import check_keywords
from amplifier_kit.validation.subject import Subject

DEFAULT_SECONDS = 60.0

_KEY = "api_key"
_MADE_UP_KEY = "made-up-by-module-validate"
"""The key for providers that have none; checks of their structure contact no service."""

_SUITE = ("pytest>=8.3", "pytest-asyncio>=0.25")
"""Requirements of the behaviour suites, which normal use does not need."""


def validate_module(
    subject: Subject,
    *,
    kind: str | None = None,
    config: Mapping[str, Any] | None = None,
    behavioral: bool = False,
    requires: Sequence[PlanRequirement] = (),
    seconds: float = DEFAULT_SECONDS,
    memory: int = MEMORY_BYTES,
) -> Report:
    """Check a module from its folder to its behaviour.

    Args:
        subject: The module.
        kind: The kind to check it as; by default the one it declares.
        config: The configuration for `mount`.
        behavioral: Whether to run the behaviour suite of its kind as well.
        requires: Requirements that a plan adds to it.
        seconds: Time limit of each of the two child processes.
        memory: Limit of resident memory of each of them, in bytes.
    """
    checks: list[Check] = []
    layout = _find_layout(subject, checks)
    if layout is not None and requires:
        layout = layout._replace(added=(*layout.added, *Fetcher().additions(requires)))
    folders = _install(layout, checks) if layout is not None else []
    if layout is None or _has_errors(checks):
        entry_point = layout.entry_point if layout is not None else None
        return Report(subject.shown, kind, entry_point, tuple(checks))
    checks.append(check_keywords(layout.package))
    request: dict[str, Any] = {
        "mode": "contract",
        # An installed module is already on the child's path.
        "folder": "" if subject.path is None else str(layout.folder),
        "import_paths": folders,
        "preferred_paths": _preferred_folders(folders),
        "entry_point": layout.entry_point,
        "package": str(layout.package),
        "name": layout.module_id or layout.package.stem,
        "kind": kind,
        "config": dict(config or {}),
    }
    tried = try_out(request, seconds=seconds, memory=memory)
    if _has_declined(tried) and _KEY not in request["config"]:
        keyed = request | {"config": {**request["config"], _KEY: _MADE_UP_KEY}}
        with_key = try_out(keyed, seconds=seconds, memory=memory)
        if not _has_errors(with_key.checks):
            request, tried = keyed, with_key
            message = f"it mounts nothing without a key; checked with a made-up {_KEY}"
            advice = f"pass a real one with --config {_KEY}=… or in the environment"
            checks.append(Check("credentials", False, message, "info", advice))
    kind = tried.kind or kind
    checks += tried.checks
    output = tried.output
    if behavioral and any(check.message.startswith(ASKS) for check in checks):
        advice = "pass its settings with --config"
        checks.append(Check("behavior", False, "not checked: nothing is mounted", "info", advice))
    elif behavioral and kind is not None and not _has_errors(checks):
        folders += _install_suite(folders, checks)
        request |= {"mode": "behaviour", "kind": kind, "import_paths": folders}
        request |= {"preferred_paths": _preferred_folders(folders)}
    if request["mode"] == "behaviour" and not _has_errors(checks):
        tried = try_out(request, seconds=seconds, memory=memory)
        # Findings that occur in both runs are listed once.
        checks += [check for check in tried.checks if check not in checks]
        output = "\n".join(filter(None, (output, tried.output)))
    return Report(subject.shown, kind, layout.entry_point, tuple(checks), output)


def _has_errors(checks: Iterable[Check]) -> bool:
    return any(not check.passed and check.severity == "error" for check in checks)


def _has_declined(tried: Tried) -> bool:
    """Whether it is a provider that mounted nothing, as providers without a key do."""
    return tried.kind == "provider" and any(
        not check.passed and "mounted no provider" in check.message for check in tried.checks
    )


# -- structure and entry point -----------------------------------------------------------


def _find_layout(subject: Subject, checks: list[Check]) -> Layout | None:
    try:
        layout = subject.layout or find_layout(subject.path or Path())
    except SourceError as error:
        advice = error.hint or "see the structure of a module in: amplifier docs contracts"
        checks.append(Check("structure", False, error.message, advice=advice))
        return None
    checks.append(Check("structure", True, _structure(subject, layout)))
    target = layout.entry_point or layout.package.name
    if layout.module_id is not None:
        who = " ".join(layout.distribution) if layout.distribution else "pyproject.toml"
        message = f"{who} declares {layout.module_id} as {target}"
        checks.append(Check("entry_point", True, message))
        return layout
    name = layout.package.stem.removeprefix("amplifier_module_").replace("_", "-")
    checks.append(
        Check(
            "entry_point",
            False,
            "not declared in a pyproject.toml: it works as a folder, but not as an installed package",
            "warning",
            f'add [project.entry-points."{ENTRY_POINT_GROUP}"] with '
            f'{name} = "{layout.entry_point or f"{target}:mount"}"',
        )
    )
    return layout


def _structure(subject: Subject, layout: Layout) -> str:
    if subject.path is None:
        return f"installed at {layout.package}"
    if layout.package == subject.path and subject.path.is_dir():
        return "the folder is itself the package"
    within = layout.package.is_relative_to(subject.path) and layout.package != subject.path
    return f"the package is {layout.package.relative_to(subject.path) if within else layout.package.name}"


# -- dependencies ------------------------------------------------------------------------


def _cache() -> DependencyCache:
    return DependencyCache(paths.cache_dir() / "dependencies")


def _install(layout: Layout, checks: list[Check]) -> list[str]:
    """Folders of the module's dependencies, for the end of `sys.path`."""
    if layout.project_file is None and not layout.dependencies and not layout.added:
        return []
    try:
        folder = _cache().folder_for(layout)
    except SourceError as error:
        advice = error.hint or "fix 'dependencies' in pyproject.toml"
        checks.append(Check("dependencies", False, error.message, advice=advice))
        return []
    nothing = "all available" if required_by(layout) or layout.added else "none"
    found = f"installed into {folder}" if folder else nothing
    checks.append(Check("dependencies", True, found))
    return [str(folder)] if folder is not None else []


def _preferred_folders(folders: Iterable[str]) -> list[str]:
    """Folders of the module's dependencies that precede the environment on `sys.path`."""
    return [str(path) for folder in folders for path in preferred_in(Path(folder))]


def _install_suite(folders: list[str], checks: list[Check]) -> list[str]:
    """Folders of the suite's dependencies that the environment lacks, for the end of `sys.path`.

    Args:
        folders: Folders of the module's dependencies, whose versions take precedence.
        checks: Receives a finding if the dependencies are unavailable.
    """
    layout = Layout(Path("the behaviour suite"), None, Path(), dependencies=_SUITE)
    try:
        folder = _cache().folder_for(layout, pins=distributions(folders))
    except SourceError as error:
        advice = "install pytest and pytest-asyncio next to Amplifier"
        checks.append(Check("behavior", False, error.message, advice=advice))
        return []
    return [str(folder)] if folder is not None else []
