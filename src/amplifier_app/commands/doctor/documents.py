"""Checks of the user's files: settings, profiles, and the project with its trust."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from amplifier_app import trust
from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError
from amplifier_app.commands.doctor.check import Check
from amplifier_app.plan.documents.profile_paths import profile_names
from amplifier_app.plan.documents.scopes import SCOPES, read_settings, settings_path
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import Fetching, load_profile


def project() -> Iterator[Check]:
    """The project of the working directory, and whether it is trusted."""
    folder = paths.project_dir()
    if folder is None:
        yield Check("project", "ok", "none (no .amplifier folder here or above)")
    elif trust.ignored_by_environment():
        yield Check("project", "ok", f"{folder} is ignored (AMPLIFIER_NO_PROJECT is set)")
    else:
        try:
            trust.trusted_project(folder)
            yield Check("project", "ok", f"{folder} is trusted")
        except ConfigError as error:
            yield Check("project", "warn", error.message, error.hint)


@cache
def trusted_folder() -> Path | None:
    """The project's folder; None if there is none or it is not trusted."""
    return trust.folder_if_trusted(quiet=True)


def settings() -> Iterator[Check]:
    """Check that the settings files are readable and valid."""
    folder = trusted_folder()
    try:
        found = [str(file.path) for file in read_settings(folder).files]
    except PlanError as error:
        for problem in error.problems:
            yield Check("settings", "fail", str(problem), "fix it in the file")
        return
    except ConfigError as error:
        fix = error.hint or "make the file readable, or remove it"
        yield Check("settings", "fail", error.message, fix)
        return
    places = [str(path) for scope in SCOPES if (path := settings_path(scope, folder))]
    nothing = f"none (searched: {', '.join(places)})"
    yield Check("settings", "ok", ", ".join(found) or nothing)


def profiles() -> Iterator[Check]:
    """Check that each profile is a plan that can run here."""
    folder = trusted_folder()
    try:
        read_settings(folder)
    except ConfigError:
        message = "not checked, because the settings are part of every profile"
        yield Check("profiles", "warn", message, "fix the settings first")
        return
    good: list[str] = []
    offline = Fetching(offline=True)
    for name in profile_names(folder):
        try:
            loaded = load_profile(name, project=folder, fetching=offline)
        except ConfigError as error:
            yield Check("profiles", "fail", f"{name}: {_first_line(error)}", "fix the file")
            continue
        try:
            loaded.resolve()
            good.append(name)
        except ConfigError as error:
            # The profile is valid; what it needs from the environment may be set at another time.
            fix = f"see all problems: amplifier plan show --profile {name}"
            yield Check("profiles", "warn", f"{name}: {_first_line(error)}", fix)
    yield Check("profiles", "ok", ", ".join(good) or "none")
    try:
        default = load_profile(project=folder, fetching=offline).resolve()
        yield Check("default", "ok", f"a run uses the profile {default.name}")
    except ConfigError as error:
        yield Check("default", "fail", str(error), "fix it, or choose another with --profile")


def _first_line(error: ConfigError) -> str:
    return str(error).partition("\n")[0]
