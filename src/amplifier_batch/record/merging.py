"""Put the batches of shards together."""

from __future__ import annotations

import heapq
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.base.file_writing import open_private
from amplifier_batch.input import build_session_id, parse_key
from amplifier_batch.open_files import allow_many_files
from amplifier_batch.record.folder import SCORES, WORK, BatchFolder, new_folder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import OF_PROVIDER_BATCHES, WAITING, Progress
from amplifier_batch.record.writer import BatchWriter, writing
from amplifier_support.files import open_to_read, system_errors_as

_SAME = ("plan_digest", "lock_digest", "input_digest", "prompt", "repeat")


def merge(parts: Sequence[BatchFolder], target: Path) -> BatchFolder:
    """Copy results and sessions of several batches to a new one, in the order of the rows.

    Args:
        parts: Batches of the same plan and input, with different shards.
        target: The new folder.

    Raises:
        ConfigError: They do not belong together, or a row is in two of them.
        SessionError: A folder cannot be read or written, or a batch is running.
    """
    first = parts[0]
    for part in parts:
        part.require_unedited()
        for name in _SAME:
            if part.facts.get(name) != first.facts.get(name):
                what = name.replace("_digest", "").replace("_", " ")
                raise ConfigError(f"{first.shown} and {part.shown} have a different {what}")
        if part.counts()[1]:
            raise SessionError(
                f"the batch in {part.shown} is running", hint="Merge it when it has ended."
            )
    states = _states(parts)
    allow_many_files()
    with new_folder(target, whole=True):
        merged = BatchFolder.create(target, _facts(parts, target.absolute()), first.plan)
        _fill(merged, parts, states)
    return merged


def _fill(
    merged: BatchFolder,
    parts: Sequence[BatchFolder],
    states: Mapping[str, tuple[BatchFolder, Progress]],
) -> None:
    for part in parts:
        _copy_folders(part.sessions, merged.sessions)
        _copy_scores(part.path / SCORES, merged.path / SCORES)
    with writing(merged) as writer:
        for part in parts:
            _copy_provider_batches(part, writer)
        # Each part is sorted by itself and stays open, so that memory holds one result of each.
        results = (part.results(by_number=True) for part in parts)
        for result in heapq.merge(*results, key=lambda line: (line["number"], line["repeat"])):
            writer.claim(merged.build_key(result), result["attempts"], result["session_id"])
            writer.end(result)
        for key, (part, progress) in states.items():
            state = progress.of(key)
            # It goes on with its session, and in its own folder if it has one.
            row_id, run = parse_key(key, merged.repeat)
            session = build_session_id(row_id, state.attempt, run)
            if state.outcome in (None, WAITING):
                _copy_folders(part.path / WORK, merged.path / WORK, session)
            if state.outcome is None:
                writer.claim(key, state.attempt, session)
                writer.release(key, "merged", progress.recorded.get(key))
        # Results have the cost of the last attempt only.
        paid = sum((part.counts()[0].cost for part in parts), Decimal(0))
        if (earlier := paid - writer.progress.counts.cost) > 0:
            writer.note({"event": "merged", "cost": format(earlier, "f")})


def _states(parts: Sequence[BatchFolder]) -> dict[str, tuple[BatchFolder, Progress]]:
    """Return each row that was touched with its folder and its progress."""
    states: dict[str, tuple[BatchFolder, Progress]] = {}
    for part in parts:
        progress = part.progress()
        for row_id in _claimed(part):
            if row_id in states:
                raise ConfigError(
                    f"the row {row_id!r} is in {states[row_id][0].shown} and in {part.shown}",
                    hint="Merge shards of one batch: --shard 1/2 and --shard 2/2.",
                )
            states[row_id] = part, progress
    return states


def _claimed(part: BatchFolder) -> list[str]:
    """Return the rows that were touched, in the order in which they began."""
    rows: dict[str, None] = {}
    part.scan_journal(
        lambda record: rows.setdefault(record["id"]) if record.get("event") == "claimed" else None
    )
    return list(rows)


def _facts(parts: Sequence[BatchFolder], target: Path) -> dict[str, Any]:
    """The facts of the merged batch; files that are saved in the first part are copied."""
    first = parts[0]
    facts: dict[str, Any] = {
        **first.facts,
        "shard": None,
        "rows": sum(int(part.facts["rows"]) for part in parts),
        "economy": any(part.facts.get("economy") for part in parts),
    }
    deadlines = [part.facts.get("deadline") or math.inf for part in parts]
    facts["deadline"] = None if math.inf in deadlines else max(deadlines)

    def copy_saved_input(file: str | None) -> str | None:
        source = Path(file or "")
        # The parts may be removed later.
        return str(_copy_file(source, target)) if source.parent == first.path else file

    facts["input"] = copy_saved_input(facts.get("input"))
    if request := facts.get("request"):
        facts["request"] = {**request, "schema": copy_saved_input(request.get("schema"))}
    return facts


def _copy_provider_batches(part: BatchFolder, writer: BatchWriter) -> None:
    """Take over what is at the provider, so that `resume` gets the answers that are paid for."""

    def copy(record: Record) -> None:
        if record.get("event") in OF_PROVIDER_BATCHES:
            writer.note(record)

    part.scan_journal(copy)


def _copy_scores(source: Path, target: Path) -> None:
    """Add the scores of a part; they name the runs that they are of."""
    with system_errors_as(SessionError, f"cannot copy {source}"):
        if source.exists():
            data = source.read_bytes()
            created = open_private(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with open(created, "ab") as file:
                # A crash may have torn the last line.
                file.write(data if data.endswith(b"\n") else data + b"\n")


def _copy_file(source: Path, folder: Path) -> Path:
    target = folder / source.name
    with system_errors_as(SessionError, f"cannot copy {source}"):
        created = open_private(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(open_to_read(source), "rb") as file, open(created, "wb") as copy:
            shutil.copyfileobj(file, copy)
    return target


def _copy_folders(source: Path, target: Path, name: str | None = None) -> None:
    """Copy the folders in a folder, or the one of a name."""
    try:
        if not source.is_dir():
            return
        for folder in source.iterdir():
            if name in (None, folder.name) and folder.is_dir() and not folder.is_symlink():
                shutil.copytree(folder, target / folder.name, symlinks=True)
    except OSError as error:
        raise SessionError(f"cannot copy {source}: {error}") from error
