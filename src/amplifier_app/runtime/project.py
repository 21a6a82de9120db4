"""The project of a run, and of a session that is resumed.

A new session belongs to the project of the working directory. One that is resumed with its saved
plan keeps the project it began with, wherever it is resumed: what its plan took from there runs
again only if that is trusted now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError
from amplifier_app.base.sanitize import visible
from amplifier_app.trust import (
    METADATA_KEY,
    Ask,
    TrustedProject,
    ignored_by_environment,
    tell_left_out,
    trusted_project,
)


def choose_project(
    *,
    session: str | None,
    trust: bool,
    ignore: bool,
    stands_alone: bool,
    ask: Ask | None,
) -> TrustedProject | None:
    """The project whose settings, profiles and modules count.

    Args:
        session: Id of the session that goes on with its saved plan; None for a new one.
        trust: Trust the project for this run.
        ignore: Leave it out, whatever there is.
        stands_alone: The plan was named as a file, which needs no project: one that is not
            trusted is left out.
        ask: Asks at the terminal; None without one.

    Raises:
        ConfigError: It is not trusted, and nobody says that it is; or the session needs what is
            gone or left out.
        SessionError: There is no such session.
    """
    ignore = ignore or ignored_by_environment()
    if session is not None:
        from amplifier_app.sessions.store import SessionStore

        store = SessionStore()
        metadata = store.metadata(session)
        if "created" not in metadata and _names_folders(store.find(session) / "plan.yaml"):
            raise _cannot_go_on("its metadata is lost, and with it where its modules came from")
        return _of_session(metadata, trust=trust, ignore=ignore, ask=ask)
    folder = None if ignore else paths.project_dir()
    if folder is None:
        return None
    if not stands_alone or trust:
        return trusted_project(folder, trust=trust, ask=ask)
    try:
        return trusted_project(folder)
    except ConfigError as error:
        tell_left_out(error)
        return None


def _of_session(
    metadata: Mapping[str, Any], *, trust: bool, ignore: bool, ask: Ask | None
) -> TrustedProject | None:
    noted = metadata.get(METADATA_KEY)
    if not isinstance(noted, dict):
        return None
    folder = Path(str(noted.get("folder")))
    project = None
    if not ignore:
        if not os.path.isdir(folder):
            raise _cannot_go_on(
                f"it began with the project {visible(str(folder.parent))}, which is gone"
            )
        project = trusted_project(folder, trust=trust, ask=ask)
    for source in map(Path, noted.get("sources") or ()):
        if project is None:
            raise _cannot_go_on(f"its plan takes a module from the project: {visible(str(source))}")
        if project.content is not None and not project.content.covers(source):
            raise _cannot_go_on(f"the project does not name {visible(str(source))} any more")
    return project


def _names_folders(plan: Path) -> bool:
    from amplifier_app.trust.selection import selected_by

    return plan.is_file() and bool(selected_by(plan, plan.read_bytes()))


def _cannot_go_on(why: str) -> ConfigError:
    return ConfigError(
        f"the session cannot go on as it began: {why}",
        hint="Resume it with another plan: --plan FILE or --profile NAME.",
    )
