"""`amplifier session approve`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.answers import (
    AllowOption,
    AnswerOption,
    DenyOption,
    ExpiresOption,
    read_decision,
)
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.commands.typer_options import argument
from amplifier_app.render.table import OutputOption
from amplifier_app.sessions.lock import SessionLock
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id
from amplifier_app.sessions.waiting import WEEK, Decision, Question, Waiting


def approve(
    session_id: SessionArgument,
    number: Annotated[str | None, argument("CALL", "The question, by its number.")] = None,
    allow: AllowOption = False,
    deny: DenyOption = False,
    answer: AnswerOption = None,
    expires: ExpiresOption = None,
    output: OutputOption = "text",
) -> None:
    """List the questions that wait in a session (run --approve park), or answer one.

    \b
      amplifier session approve 1a2b3c
      amplifier session approve 1a2b3c --allow
      amplifier session approve 1a2b3c 2 --deny --answer "Use the staging host."

    Then go on with: amplifier run --resume ID. Exactly the allowed call may run, once; with another
    input it is asked about again. An answer that came with a bundle is shown, and counts only after
    you have given it yourself.
    """
    folder = SessionStore().find(session_id).path
    decision = read_decision(allow, deny, answer)
    if decision is None:
        _list(Waiting(folder), number, output)
        return
    with SessionLock(folder / "lock", folder.name):
        waiting = Waiting(folder)
        question = _choose(waiting, number)
        waiting.answer(question, decision, answer or "", expires or WEEK)
    _report(folder, waiting, question, decision)


def _choose(waiting: Waiting, number: str | None) -> Question:
    """The question to answer; one that was answered may be answered again until the answer is used."""
    if number is not None:
        question = waiting.questions.get(number)
        if question is None:
            known = ", ".join(waiting.questions) or "none"
            raise UsageError(f"no question {number!r} in this session", hint=f"Questions: {known}")
        if question.is_used:
            raise SessionError(f"the answer to question {number} was used already")
        return question
    if not waiting.open:
        raise SessionError("nothing waits for approval in this session")
    if len(waiting.open) > 1:
        numbers = ", ".join(question.id for question in waiting.open)
        raise UsageError("several questions wait", hint=f"Name one of them: {numbers}")
    return waiting.open[0]


def _list(waiting: Waiting, number: str | None, output: str) -> None:
    questions = [_choose(waiting, number)] if number is not None else [*waiting.questions.values()]
    if output == "json":
        print(json_text([question.as_data() for question in questions]))
        return
    if not questions:
        to_stderr("nothing waits for approval in this session")
    for question in questions:
        print(for_terminal(question.describe()))


def _report(folder: Path, waiting: Waiting, question: Question, decision: Decision) -> None:
    words = {"allow": "allowed", "deny": "denied", "answer": "answered"}
    what = question.tool or one_line(question.text, 100)
    to_stderr(f"amplifier: {words[decision]}: {what} (question {question.id})")
    left = len(waiting.open)
    if left:
        to_stderr(f"amplifier: {left} more {'waits' if left == 1 else 'wait'}")
        return
    command = f"run --resume {short_id(folder.name)}"
    batch = folder.parent.parent
    if (batch / "batch.json").exists():
        command = f"batch resume {shlex.quote(str(batch))}"
    to_stderr(f"amplifier: go on with: amplifier {command}")
