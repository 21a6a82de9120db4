"""The rows of a batch that wait for approval."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amplifier_app.base.sanitize import one_line
from amplifier_app.sessions.waiting import Waiting
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import WAITING
from amplifier_support.named_tuple import NamedTuple

_MAX_CALL = 200


class WaitingRow(NamedTuple):
    """A run of a row that waits.

    Attributes:
        row: The id of the row.
        key: The key of the run; see `Row.key`.
        name: The row, with its run if there are several.
        session: The folder of its session.
        questions: The questions of the session, answered or not.
        result: Its line of results.
    """

    row: str
    key: str
    name: str
    session: Path
    questions: Waiting
    result: Record

    def as_data(self) -> dict[str, Any]:
        """The row and its questions as JSON data."""
        return {
            "row": self.row,
            "repeat": self.result["repeat"],
            "session_id": self.session.name,
            "questions": [question.as_data() for question in self.questions.questions.values()],
        }

    def list_calls(self) -> Iterator[tuple[str, str, str]]:
        """Yield number, call and state of each question whose answer was not used, each in one line."""
        for question in self.questions.questions.values():
            if not question.is_used:
                call = f"{question.tool} {json.dumps(question.input, ensure_ascii=False)}"
                text = question.text if question.tool is None else call
                yield question.id, one_line(text, _MAX_CALL), question.state


def find_waiting(folder: BatchFolder) -> Iterator[WaitingRow]:
    """Yield the rows that wait, in the order of the input.

    Raises:
        SessionError: The results or a session's questions cannot be read.
    """
    if not folder.counts()[0].outcomes[WAITING]:
        return
    for result in folder.results(by_number=True):
        if result["outcome"] == WAITING and result["session_id"] is not None:
            session = folder.sessions / result["session_id"]
            key, name = folder.build_key(result), folder.read_name(result)
            yield WaitingRow(result["row"], key, name, session, Waiting(session), result)


def approve_command(folder: BatchFolder, row: str = "") -> str:
    """The command that lists and answers what waits in a batch, or in one row."""
    return " ".join(
        [
            "amplifier batch approve",
            shlex.quote(folder.shown),
            *filter(None, [row and shlex.quote(row)]),
        ]
    )
