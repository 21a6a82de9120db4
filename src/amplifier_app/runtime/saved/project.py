"""The project of a run or of a resumed session.

A new session belongs to the project of the working directory. A session resumed with its saved plan
keeps its original project, wherever it is resumed: modules from the project run again only if the
project is trusted now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError
from amplifier_app.base.sanitize import visible
from amplifier_app.plan.tree.yaml_reader import read_bytes
from amplifier_app.trust import (
    METADATA_KEY,
    Ask,
    TrustedProject,
    ignored_by_environment,
    report_skipped,
    trusted_project,
)
from amplifier_app.trust.selection import selected_by

if TYPE_CHECKING:
    from amplifier_app.sessions.folder import SessionFolder


def choose_project(
    *,
    session: SessionFolder | None,
    trust: bool,
    ignore: bool,
    is_standalone: bool,
    ask: Ask | None,
) -> TrustedProject | None:
    """Return the project whose settings, profiles and modules apply.

    Args:
        session: A session to resume with its saved plan; None for a new session.
        trust: Trust the project for this run.
        ignore: Ignore any project.
        is_standalone: The plan is a file, which needs no project: skip a project that is not
            trusted.
        ask: Asks on the terminal; None without one.

    Raises:
        ConfigError: The project is not trusted; or the session needs a project that is missing or
            ignored.
    """
    ignore = ignore or ignored_by_environment()
    if session is not None:
        is_complete = session.fault is None and not session.metadata.get("repaired")
        if (
            not is_complete
            and METADATA_KEY not in session.metadata
            and _names_folders(session.plan)
        ):
            raise _cannot_resume("its metadata was lost, which records the sources of its modules")
        return _of_session(session.metadata, trust=trust, ignore=ignore, ask=ask)
    folder = None if ignore else paths.project_dir()
    if folder is None:
        return None
    if not is_standalone or trust:
        return trusted_project(folder, trust=trust, ask=ask)
    try:
        return trusted_project(folder)
    except ConfigError as error:
        report_skipped(error)
        return None


def _of_session(
    metadata: Mapping[str, Any], *, trust: bool, ignore: bool, ask: Ask | None
) -> TrustedProject | None:
    noted = metadata.get(METADATA_KEY)
    if noted is None:
        return None
    folder = Path(noted["folder"])
    project = None
    if not ignore:
        if not os.path.isdir(folder):
            raise _cannot_resume(
                f"it began with the project {visible(str(folder.parent))}, which is missing"
            )
        project = trusted_project(folder, trust=trust, ask=ask)
    for source in map(Path, noted.get("sources", ())):
        if project is None:
            raise _cannot_resume(f"its plan uses a module of the project: {visible(str(source))}")
        if project.content is not None and not project.content.covers(source):
            raise _cannot_resume(f"the project no longer names {visible(str(source))}")
    return project


def _names_folders(plan: Path) -> bool:
    return plan.is_file() and bool(selected_by(plan, read_bytes(plan, str(plan), "the plan")))


def _cannot_resume(why: str) -> ConfigError:
    return ConfigError(
        f"cannot resume the session with its saved plan: {why}",
        hint="Resume it with another plan: --plan FILE or --profile NAME.",
    )
