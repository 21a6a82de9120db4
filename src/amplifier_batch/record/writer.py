"""The one writer of a batch: what happened is on disk before the next step, in an order that a crash cannot confuse."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Generator
from decimal import Decimal
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import open_private, write_private
from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import (
    RESULTS,
    BatchFolder,
    find_waiting,
    fixed_facts,
    holding,
    read_copy,
    read_facts,
)
from amplifier_batch.record.journal import Appender, Record, check_lines, damage_error, scan
from amplifier_batch.record.progress import REPLACEMENT, WAITING, Progress
from amplifier_batch.record.results import is_result, read_cached, read_dollars, read_seconds
from amplifier_support import journal as lines
from amplifier_support.files import system_errors_as


@contextlib.contextmanager
def writing(folder: BatchFolder) -> Generator[BatchWriter]:
    """Open a batch for writing; only one process can.

    Raises:
        SessionError: Another process has it, or it is damaged or cannot be written.
    """
    if folder.sessions.is_symlink():
        raise SessionError(
            f"cannot write to {folder.sessions}: it is a link", hint="Replace it by the folder."
        )
    if (url := read_copy(folder.path).get("url")) and not folder.sealer.is_remote:
        raise SessionError(f"{folder.path} is a copy of the batch at {url}", hint="Pass the URL.")
    name = f"the batch in {folder.shown}"
    with holding(folder.lock, folder.path.name, name, folder.shown):
        writer = BatchWriter(folder)
        try:
            yield writer
        finally:
            writer.close()


class BatchWriter:
    """The one writer of a batch.

    Attributes:
        folder: Its folder.
        progress: The progress of each row.
        on_result: Called with each result once it is on disk.
    """

    def __init__(self, folder: BatchFolder) -> None:
        self.folder = folder
        self.on_result: Callable[[Record], None] = lambda result: None
        self.progress = Progress(folder.repeat)
        self.log = open_private(folder.path / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        path = folder.path
        self._journal = Appender(path / "journal.jsonl", folder.scan_journal(self.progress.add))
        # Those on disk may count records that were lost when the machine stopped.
        self.save_status()
        if not self._journal.size:
            facts = fixed_facts(read_facts(path))
            self.note({"event": "begun", "batch": facts.get("batch"), "facts": facts})
        self._finish_replacing()
        known, results = self.progress.counts.size, list[Record]()
        check_lines(path / RESULTS, known, self.progress.counts.ended)
        self._results = Appender(path / RESULTS, scan(path / RESULTS, results.append, known))
        # What a crash left without its record.
        for number, result in enumerate(results, self.progress.counts.ended + 1):
            if (
                not is_result(result)
                or self.progress.of(folder.build_key(result)).outcome is not None
            ):
                raise damage_error(path / RESULTS, number)
            known += len(lines.encode(result))
            self._note_ended(result, known)
        for row_id in sorted(self.progress.running):
            self.release(row_id, "interrupted")

    def claim(self, row_id: str, attempt: int, session: str) -> None:
        """Record that a row is about to run. Raises SessionError."""
        record = {"event": "claimed", "id": row_id, "attempt": attempt, "session": session}
        self.note(record)
        self.folder.sealer.begin(row_id, session)

    def release(self, row_id: str, why: str, cost: Decimal | None = None) -> None:
        """Record that a row stopped before its end and will be continued.

        Args:
            row_id: The row.
            why: Why it stopped, in one word.
            cost: US dollars since it was claimed.

        Raises:
            SessionError: The journal cannot be written.
        """
        self.note({"event": "released", "id": row_id, "why": why, "cost": _number(cost)})
        self.folder.sealer.end(row_id)

    def end(self, result: Record) -> None:
        """Record the result of a row. Raises SessionError."""
        with self.folder.sealer.lock:
            self._results.append(result)
            self._note_ended(result, self._results.size)
            self.folder.sealer.end(self.folder.build_key(result))
        self.on_result(result)

    def reopen(self, selects: Callable[[Record], bool]) -> int:
        """Return the rows whose results are selected to the queue, and how many there are.

        Raises:
            SessionError: The folder cannot be written; no row is reopened.
        """
        name = f"results-{secrets.token_hex(4)}.jsonl"
        rows: dict[str, dict[str, Any]] = {}
        size = 0
        descriptor = open_private(self.folder.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with (
            system_errors_as(SessionError, f"cannot write {self.folder.path}"),
            open(descriptor, "wb") as kept,
        ):
            for result in self.folder.results():
                if selects(result):
                    rows[self.folder.build_key(result)] = {
                        "outcome": result["outcome"],
                        "cost": read_dollars(result),
                        "cached": read_cached(result),
                    }
                else:
                    size += kept.write(lines.encode(result))
            kept.flush()
            os.fsync(kept.fileno())
        with self.folder.sealer.lock:
            # From this record on, the new file is the valid one.
            self.note({"event": "reopened", "rows": rows, "file": name, "size": size})
            self._results.close()
            self._finish_replacing()
        path = self.folder.path / RESULTS
        self._results = Appender(path, scan(path, lambda record: None, size))
        return len(rows)

    def reopen_answered(self) -> int:
        """Return the waiting rows whose questions are all answered to the queue, and how many there are.

        Raises:
            SessionError: Questions cannot be read, or the folder cannot be written; no row is reopened.
        """
        if not self.progress.counts.outcomes[WAITING]:
            return 0
        ready = {row.key for row in find_waiting(self.folder) if not row.questions.open}
        if not ready:
            return 0
        return self.reopen(lambda result: self.folder.build_key(result) in ready)

    def save_status(self) -> None:
        """Write the sums, so that others can read them quickly."""
        counts = self.progress.counts.as_dict()
        text = json.dumps({"journal_size": self._journal.size, "counts": counts})
        # Without them, others read the journal; the next record reports a full disk.
        with contextlib.suppress(SessionError):
            write_private(self.folder.path / "status.json", text)

    def close(self) -> None:
        """Save the sums and close the files."""
        # Commands that only read a batch do not make lost records again: none may be lost once it has ended.
        with contextlib.suppress(SessionError):
            self._journal.sync()
        self.save_status()
        self._journal.close()
        self._results.close()
        os.close(self.log)

    def _note_ended(self, result: Record, size: int) -> None:
        total = read_dollars(result)
        key = self.folder.build_key(result)
        before = self.progress.recorded.get(key, Decimal(0))
        record = {
            "event": "ended",
            "id": key,
            "attempt": result["attempts"],
            "outcome": result["outcome"],
            "cost": None if total is None else _number(Decimal(str(total)) - before),
            "seconds": read_seconds(result),
            "cached": read_cached(result),
            "size": size,
        }
        if self.folder.repeat > 1 and result["outcome"] != WAITING:
            has_passed = result["outcome"] == Ending.OK.value
            record["runs"] = self.progress.cell_after(key, 1, has_passed=has_passed)
        # The result is on disk: a record that is lost when the machine stops is made again from it.
        self.note(record, durable=self.folder.sealer.is_remote)

    def note(self, record: Record, *, durable: bool = True) -> None:
        """Add a record to the journal, as `Appender.append` does. Raises SessionError."""
        with self.folder.sealer.lock:
            self._journal.append(record, durable=durable)
        self.progress.add(record)

    def _finish_replacing(self) -> None:
        """Finish what `reopen` began, or remove what it left."""
        with system_errors_as(SessionError, f"cannot write {self.folder.path}"):
            for path in self.folder.path.iterdir():
                if REPLACEMENT.fullmatch(path.name):
                    if path.name == self.progress.counts.replaced:
                        path.replace(self.folder.path / RESULTS)
                    else:
                        path.unlink()


def _number(cost: Decimal | None) -> str | None:
    """An amount as the journal has it, exactly."""
    return None if cost is None else format(cost, "f")
