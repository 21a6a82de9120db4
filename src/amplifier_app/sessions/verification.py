"""Find what is damaged in a saved session, and repair what can be repaired without losing anything.

A repair keeps the damaged file next to the repaired one, as `NAME.damaged`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_yaml
from amplifier_app.sessions.conversation import Conversation
from amplifier_app.sessions.folder import IMPORTED_PLAN, make_title, write_metadata
from amplifier_app.sessions.lock import SessionLock, is_locked
from amplifier_app.sessions.removal import is_remnant, remove_folder
from amplifier_app.sessions.summary import SCHEMA_VERSION, read_metadata, short_id, time_text
from amplifier_app.sessions.transcript import is_message
from amplifier_support import journal
from amplifier_support.files import (
    FILE_MODE,
    FOLDER_MODE,
    create_atomically,
    open_regular,
    read_regular,
    sync_folder,
    system_errors_as,
    write_private,
)
from amplifier_support.named_tuple import NamedTuple

_SPAWNED = re.compile(r"(.+)-[0-9a-f]{16}_(.+)")
_RECORD_BEGINS = re.compile(r'\{"(role|control)":')


class Finding(NamedTuple):
    """Something that is wrong with a session.

    Attributes:
        problem: What is wrong.
        is_error: Whether the session cannot be resumed as it is.
        repair: Repairs it; None if it cannot be repaired.
        hint: What else can be done.
    """

    problem: str
    is_error: bool
    repair: Callable[[], None] | None = None
    hint: str = ""


def verify(path: Path) -> list[Finding]:
    """Return the faults of the session in `path`; nothing is changed.

    Nothing is wrong with one that is removed meanwhile.
    """
    try:
        if is_remnant(path):
            return _remnant(path)
        faults = [*_metadata(path), *_transcript(path), *_plan(path), *_permissions(path)]
    except FileNotFoundError:
        if path.exists():
            raise
        return []
    return faults if path.exists() else []


def repair(path: Path, findings: list[Finding]) -> list[Finding]:
    """Repair what can be repaired; returns what is left.

    Raises:
        SessionError: The session is in use, or cannot be written.
    """
    refused = system_errors_as(SessionError, f"cannot repair session {path.name}")
    with SessionLock(path / "lock", path.name), refused:
        for finding in findings:
            if finding.repair is not None:
                finding.repair()
    return verify(path)


def _remnant(path: Path) -> list[Finding]:
    if is_locked(path / "lock"):
        return []
    problem = "its creation was interrupted, and nothing was saved in it"
    return [Finding(problem, False, lambda: remove_folder(path))]


# Metadata


def _metadata(path: Path) -> list[Finding]:
    values, fault = read_metadata(path)
    if fault is None:
        parent = values.get("parent")
        # Unlike Path.is_dir, it takes names that are too long for a folder.
        if isinstance(parent, str) and not os.path.isdir(path.parent / parent):
            return [Finding(f"the session that spawned it is missing: {one_line(parent)}", False)]
        return []
    if "schema version" in fault:
        return [Finding(fault, True, hint="Use the version of Amplifier that wrote it.")]
    return [Finding(fault, False, lambda: _rebuild_metadata(path))]


def _rebuild_metadata(path: Path) -> None:
    """Write the valid values, and what the other files of the session show."""
    facts: dict[str, Any] = {}
    records = _good_records(path / "transcript.jsonl")[0]
    prompts = Conversation(records).prompts
    if prompts:
        facts |= {"title": make_title(redact(prompts[0].text)), "prompts": len(prompts)}
    spawned = _SPAWNED.fullmatch(path.name)
    if spawned and (path.parent / spawned[1]).is_dir():
        facts |= {"parent": spawned[1], "agent": spawned[2]}
    used = path / "transcript.jsonl"
    seconds = (used if used.exists() else path).stat().st_mtime
    time = time_text(seconds)
    facts |= {"schema_version": SCHEMA_VERSION, "created": time, "updated": time}
    values = {key: value for key, value in read_metadata(path).values.items() if value is not None}
    _set_aside(path / "metadata.json")
    write_metadata(path, {**facts, **values, "id": path.name, "repaired": True})


# Transcript


def _transcript(path: Path) -> list[Finding]:
    file = path / "transcript.jsonl"
    prompts = read_metadata(path).values.get("prompts")
    if not file.exists() or (file.is_file() and not file.stat().st_size):
        if not prompts:
            return []
        hint = f"Restore it, or remove the session: amplifier session delete {short_id(path.name)}"
        return [Finding("the transcript is missing or empty", True, hint=hint)]
    try:
        unknown: list[Any] = []
        with open(open_regular(file, os.O_RDONLY), "rb") as lines:
            scan = journal.Scan(lines)
            for number, record in enumerate(scan, 1):
                if not _is_good(record):
                    raise journal.Damaged(number)
                if "role" not in record and record.get("control") not in (None, "clear", "replace"):
                    unknown.append(record["control"])
    except journal.Damaged as error:
        problem = f"the transcript is damaged at line {error.line}"
        return [Finding(problem, True, lambda: _drop_damaged_records(file))]
    except OSError as error:
        return [Finding(f"the transcript is unreadable: {error.strerror}", True)]
    if unknown:
        problem = f"the transcript has an unsupported record: {one_line(str(unknown[0]), 40)}"
        return [Finding(problem, True, hint="Use the version of Amplifier that wrote it.")]
    if scan.torn:
        problem = f"the last record of the transcript is incomplete ({scan.torn} bytes)"
        return [
            Finding(problem, not scan.size and bool(prompts), lambda: _drop_damaged_records(file))
        ]
    return []


def _drop_damaged_records(file: Path) -> None:
    """Keep the records that can be read."""
    _, lines = _good_records(file)
    _set_aside(file)
    write_private(file, b"".join(line + b"\n" for line in lines))


def _good_records(file: Path) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The records that can be read, and their lines."""
    data = read_regular(file) if file.exists() else b""
    good: list[tuple[dict[str, Any], bytes]] = []
    for line in data.split(b"\n"):
        record = journal.parse(line)
        if record is None:
            good += [
                (recoverable_record, journal.encode(recoverable_record)[:-1])
                for recoverable_record in _recoverable_records(line)
                if _is_good(recoverable_record)
            ]
        elif _is_good(record):
            good.append((record, line))
    return [record for record, _ in good], [line for _, line in good]


def _recoverable_records(line: bytes) -> list[dict[str, Any]]:
    """The whole records in a line that has bytes which are no text, or more or less than one record."""
    text = re.sub("\0+", "\ufffd", line.decode("utf-8", "replace"))
    before, end = _objects(text, 0)
    for begin in _RECORD_BEGINS.finditer(text, end):
        after, last = _objects(text, begin.start())
        if last == len(text):
            return before + after
    return before


def _objects(text: str, begin: int) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects that follow one another in a text, and where they end."""
    objects: list[dict[str, Any]] = []
    # Also takes control characters in strings.
    decoder = json.JSONDecoder(strict=False)
    with contextlib.suppress(ValueError, RecursionError):
        while text.startswith("{", begin):
            value, begin = decoder.raw_decode(text, begin)
            objects.append(value)
    return objects, begin


def _is_good(record: dict[str, Any]) -> bool:
    """Return True if a record says something, if only to a newer version."""
    with contextlib.suppress(journal.UnknownControl):
        try:
            journal.current_items([record], is_message)
        except journal.Damaged:
            return False
    return True


def _set_aside(file: Path) -> None:
    """Copy a file to `NAME.damaged`, or to another name if there is one already.

    What is there in place of a file, such as a link, is renamed.
    """
    if not os.path.lexists(file):
        return
    names = [f"{file.name}.damaged", *(f"{file.name}.damaged-{n}" for n in range(2, 100))]
    free = next(name for name in names if not os.path.lexists(file.with_name(name)))
    if stat.S_ISREG(file.lstat().st_mode):
        create_atomically(file.with_name(free), read_regular(file))
    else:
        os.rename(file, file.with_name(free))
        if not file.with_name(free).is_symlink():
            _make_private(file.with_name(free))
    sync_folder(file.parent)


# Plan and permissions


def _plan(path: Path) -> list[Finding]:
    plan = path / "plan.yaml"
    hint = "Resume it with another plan: --plan FILE or --profile NAME"
    if not plan.exists() or not plan.stat().st_size:
        is_imported = (path / IMPORTED_PLAN).exists()
        return [] if is_imported else [Finding("the plan is missing or empty", False, hint=hint)]
    problems = Problems()
    try:
        read_yaml(read_regular(plan), plan.name, problems)
    except OSError as error:
        return [Finding(f"the plan is unreadable: {error.strerror}", False, hint=hint)]
    return [
        Finding(f"the plan is damaged at line {problem.at.line}", False, hint=hint)
        for problem in problems.found[:1]
    ]


def _permissions(path: Path) -> list[Finding]:
    if os.name == "nt":
        return []
    open_ones = [entry for entry in (path, *path.iterdir()) if _is_open(entry)]

    def close() -> None:
        for entry in open_ones:
            _make_private(entry)

    return [Finding("other users can read it", False, close)] if open_ones else []


def _is_open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # A temporary file of a session in use.
        return False
    return bool(mode & 0o077) and not stat.S_ISLNK(mode)


def _make_private(path: Path) -> None:
    path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
