"""The saved plan of a session: its project, and the secrets that were not saved with it.

A new session belongs to the project of the working directory. A session resumed with its saved plan
keeps its original project, wherever it is resumed: modules from the project run again only if the
project is trusted now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.base.sanitize import visible
from amplifier_app.plan.masking import MASK
from amplifier_app.plan.overrides import apply_sets, parse_sets
from amplifier_app.plan.tree.entries import entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, read_text
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_bytes, read_yaml
from amplifier_app.sessions.folder import IMPORTED_PLAN, SessionFolder
from amplifier_app.sessions.summary import short_id
from amplifier_app.trust import (
    METADATA_KEY,
    Ask,
    TrustedProject,
    ignored_by_environment,
    report_skipped,
    trusted_project,
)
from amplifier_app.trust.selection import selected_by


def saved_plan(session: SessionFolder) -> Path:
    """Return the saved plan of a session.

    Raises:
        SessionError: The file is missing or empty.
    """
    imported = session.path / IMPORTED_PLAN
    for file in (session.plan, imported):
        if file.is_symlink():
            raise SessionError(
                f"the plan of session {session.id} is a link: {file}",
                hint="Replace it by the file, or resume with another plan: --plan FILE",
            )
    try:
        size = session.plan.stat().st_size
    except OSError:
        size = None
    if not size and imported.exists():
        raise SessionError(
            f"the plan of session {session.id} was imported and can run code",
            hint="Choose a plan of your own: --profile NAME or --plan FILE\n"
            f"Or review the imported one and pass it: --plan {imported}",
        )
    if not size:
        state = "is missing" if size is None else "is empty"
        raise SessionError(
            f"the plan of session {session.id} {state}: {session.plan}",
            hint="Restore the file, or resume with another plan: --plan FILE or --profile NAME",
        )
    return session.plan


def with_secrets(
    plan: Path, session_id: str, sets: tuple[str, ...], ask: Callable[[str], str] | None
) -> tuple[str, ...]:
    """Return the assignments of `--set`, extended with the missing secrets of the plan.

    Args:
        plan: The saved plan.
        session_id: Its session.
        sets: The given assignments.
        ask: Prompts for a secret; None without a terminal.

    Raises:
        ConfigError: Secrets are missing.
    """
    data = read_bytes(plan, str(plan), "the saved plan")
    # Checked before the plan is parsed: a URL without its password may be invalid.
    if MASK.encode() not in data:
        return sets
    problems = Problems()
    tree = read_yaml(data, str(plan), problems)
    if not isinstance(tree, MapNode):
        return sets  # Reported when it is parsed as a plan.
    missing = list(_masked(apply_sets(tree, parse_sets(sets), problems), ()))
    if not missing:
        return sets
    assignments: list[str] = []
    for path, text in missing:
        note = "" if text == MASK else f", which was {text}"
        answer = ask and ask(f"{path}{note} (secrets are not saved; input is hidden): ")
        if not answer:
            break
        # Quoted YAML, so that a secret of digits remains text.
        assignments.append(f"{path}={json.dumps(answer)}")
    if len(assignments) < len(missing):
        raise _missing_secrets(session_id, [path for path, _ in missing])
    return (*sets, *assignments)


def _missing_secrets(session_id: str, paths: Sequence[str]) -> ConfigError:
    options = " ".join(f'--set {path}="$SECRET"' for path in paths)
    return ConfigError(
        f"the plan of session {session_id} contains secrets that were not saved: "
        f"{', '.join(paths)}",
        hint=f"Pass them again: amplifier run --resume {short_id(session_id)} {options}\n"
        "Or resume with the original plan: --plan FILE. A plan with ${VARIABLE} in place of the "
        "secret can be resumed without either.",
    )


def _masked(node: Node, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the paths of masked values in a plan, with the remaining text."""
    if isinstance(node, MapNode):
        for key, value in node.items.items():
            # Instructions are saved unmasked, and may contain the mask as text.
            if key != "instruction":
                yield from _masked(value, (*path, key))
    elif isinstance(node, ListNode):
        keys = [entry_key(entry) for entry in node.items]
        for index, entry in enumerate(node.items):
            key = keys[index]
            name = key if key is not None and keys.count(key) == 1 else str(index)
            yield from _masked(entry, (*path, name))
    elif MASK in (text := read_text(node) or ""):
        yield ".".join(path), text


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
