"""What a person writes: settings, profiles, and the project with its trust."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError
from amplifier_app.commands.doctor.check import Check


def project() -> Iterator[Check]:
    """The project of the working directory, and whether it counts."""
    from amplifier_app import trust

    folder = paths.project_dir()
    if folder is None:
        yield Check("project", "ok", "this directory is in none (no .amplifier folder)")
    elif trust.ignored_by_environment():
        yield Check("project", "ok", f"{folder} is left out by AMPLIFIER_NO_PROJECT")
    else:
        try:
            trust.trusted_project(folder)
            yield Check("project", "ok", f"{folder} is trusted")
        except ConfigError as error:
            yield Check("project", "warn", error.message, error.hint)


@cache
def trusted_folder() -> Path | None:
    """The folder of the project, if it is there and trusted."""
    from amplifier_app import trust

    folder = None if trust.ignored_by_environment() else paths.project_dir()
    if folder is None:
        return None
    try:
        return folder if trust.trusted_project(folder) else None
    except ConfigError:
        return None


def settings() -> Iterator[Check]:
    """Whether the settings files can be read and understood."""
    from amplifier_app.plan.problems import PlanError
    from amplifier_app.plan.scopes import SCOPES, read_settings, settings_path

    folder = trusted_folder()
    try:
        found = [str(one.path) for one in read_settings(folder).files]
    except PlanError as error:
        for problem in error.problems:
            yield Check("settings", "fail", str(problem), "correct it in the file")
        return
    except ConfigError as error:
        yield Check("settings", "fail", str(error), "make the file readable, or remove it")
        return
    places = [str(path) for scope in SCOPES if (path := settings_path(scope, folder))]
    nothing = f"none; they would be in {' or '.join(places)}"
    yield Check("settings", "ok", ", ".join(found) or nothing)


def profiles() -> Iterator[Check]:
    """Whether each profile comes to a plan that could run here."""
    from amplifier_app.plan.profile_paths import profile_names
    from amplifier_app.plan.scopes import read_settings
    from amplifier_app.sources.loading import Fetching, load_profile

    folder = trusted_folder()
    try:
        read_settings(folder)
    except ConfigError:
        message = "not checked, as the settings lie on top of all of them"
        yield Check("profiles", "warn", message, "mend the settings first")
        return
    good: list[str] = []
    offline = Fetching(offline=True)
    for name in profile_names(folder):
        try:
            loaded = load_profile(name, project=folder, fetching=offline)
        except ConfigError as error:
            yield Check("profiles", "fail", f"{name}: {_first_line(error)}", "correct the file")
            continue
        try:
            loaded.resolve()
            good.append(name)
        except ConfigError as error:
            # It is sound; what it needs of the environment may be there another time.
            mend = f"amplifier plan show --profile {name} tells all of it"
            yield Check("profiles", "warn", f"{name}: {_first_line(error)}", mend)
    yield Check("profiles", "ok", ", ".join(good) or "none")
    try:
        default = load_profile(project=folder, fetching=offline).resolve()
        yield Check("default", "ok", f"a run uses the profile {default.name}")
    except ConfigError as error:
        yield Check("default", "fail", str(error), "correct it, or run another with --profile")


def _first_line(error: ConfigError) -> str:
    return str(error).partition("\n")[0]
