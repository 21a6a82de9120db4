"""`amplifier batch approve`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.answers import (
    AllowOption,
    AnswerOption,
    DenyOption,
    ExpiresOption,
    read_decision,
)
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.sessions.lock import SessionLock
from amplifier_app.sessions.waiting import WEEK, Decision, Waiting
from amplifier_batch.options import FolderArgument
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.waiting_rows import WaitingRow, find_waiting


def approve(
    folder: FolderArgument,
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROW]...", help="The ids of the rows.", show_default=False),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Answer the questions of all rows that wait.")
    ] = False,
    allow: AllowOption = False,
    deny: DenyOption = False,
    answer: AnswerOption = None,
    expires: ExpiresOption = None,
    output: OutputOption = "text",
) -> None:
    """List the questions of rows that wait for approval (batch run --approve park), or answer them.

    \b
      amplifier batch approve out
      amplifier batch approve out r7 r12 --allow
      amplifier batch approve out --all --deny --answer "Not on a Friday."

    Then continue with: amplifier batch resume FOLDER. Exactly the allowed calls may run, once.
    """
    batch = BatchFolder(folder)
    decision = read_decision(allow, deny, answer)
    waiting = _choose(batch, rows or [])
    if decision is None:
        _list(waiting, output)
        return
    if bool(rows) == every:
        raise UsageError("expected the ids of rows, or --all")
    number = sum(_answer(row, decision, answer or "", expires or WEEK) for row in waiting)
    words = {"allow": "allowed", "deny": "denied", "answer": "answered"}
    questions, where = describe.count(number, "question"), describe.count(len(waiting), "row")
    to_stderr(f"amplifier: {words[decision]}: {questions} of {where}")
    to_stderr(f"amplifier: go on with: amplifier batch resume {shlex.quote(batch.shown)}")


def _choose(batch: BatchFolder, rows: list[str]) -> list[WaitingRow]:
    waiting = list(find_waiting(batch))
    if unknown := {*rows}.difference(row.row for row in waiting):
        raise SessionError(
            f"row {sorted(unknown)[0]!r} does not wait for approval",
            hint=f"List those that do: amplifier batch approve {shlex.quote(batch.shown)}",
        )
    return [row for row in waiting if not rows or row.row in rows]


def _list(waiting: list[WaitingRow], output: str) -> None:
    if output == "json":
        print(json_text([row.as_data() for row in waiting]))
        return
    if not waiting:
        to_stderr("no row waits for approval")
    for row in waiting:
        print(for_terminal(row.name))
        for question in row.questions.questions.values():
            text = question.describe().replace("\n", "\n   ")
            print(for_terminal(f"   {text}"))


def _answer(row: WaitingRow, decision: Decision, text: str, seconds: float) -> int:
    """Answer the open questions of a row, and return how many there were."""
    lock = SessionLock(row.session / "lock", row.session.name)
    try:
        waiting = Waiting(row.session)
        questions = waiting.open
        for question in questions:
            waiting.answer(question, decision, text, seconds)
    finally:
        lock.release()
    return len(questions)
