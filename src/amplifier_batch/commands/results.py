"""`amplifier batch status|set|merge|approve`, and `amplifier schema batch`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

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
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.schema import read_schema
from amplifier_app.commands.typer_options import argument, option, takes_options
from amplifier_app.render.table import Column, OutputOption, print_listing, print_table
from amplifier_app.runtime import describe
from amplifier_app.sessions.lock import SessionLock
from amplifier_app.sessions.waiting import WEEK, Decision, Waiting
from amplifier_batch.options import DEFAULT_WORKERS, BatchOptions, FolderArgument, local_folder
from amplifier_batch.record.folder import BatchFolder, WaitingRow, approve_command, find_waiting
from amplifier_batch.record.merging import merge as merged
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.remote import find_folder, is_driven_here, is_url
from amplifier_batch.record.results import batch_schema
from amplifier_batch.statistics.pass_rates import CONFIDENCE, PassRate
from amplifier_batch.statistics.summary import Forecast, cost_in_words, outcome_of_batch, totals

_MAX_QUESTIONS = 20


def status(folder: FolderArgument, output: OutputOption = "text") -> None:
    """Show the progress of a batch, also while it runs.

    \b
      amplifier batch status out
      amplifier batch status out --output json | jq .ended
    """
    batch = BatchFolder(folder)
    counts, running = batch.counts()
    facts = totals(batch, counts, running=running)
    waiting = list(find_waiting(batch)) if counts.outcomes[WAITING] else []
    facts["questions"] = [row.as_data() for row in waiting]
    if output == "json":
        print(json_text(facts))
        return
    state = "running" if running else ("not complete" if facts["pending"] else "ended")
    cost = cost_in_words(counts.cost, counts.cached)
    print(
        f"{facts['ended']:,} of {facts['runs']:,} {batch.unit}s, {state}{f', {cost}' if cost else ''}"
        f"{', at batch prices' if facts['economy'] else ''}"
    )
    if facts["forecast"] is not None:
        print(f"{facts['runs']:,} {batch.unit}s: {Forecast(**facts['forecast']).text}")
    for open_batch in facts["open_batches"]:
        name = (
            f"batch {open_batch['id']}" if open_batch["id"] else "a batch whose id is not known yet"
        )
        requests = describe.count(open_batch["requests"], "request")
        print(f"waiting for {name} with {requests}, sent {describe.age(open_batch['sent'])}")
    rows = [
        *(
            ("waiting for approval" if name == WAITING else name, f"{number:,}")
            for name, number in facts["outcomes"].items()
        ),
        *((name, f"{facts[name]:,}") for name in ("running", "pending") if facts[name]),
    ]
    print_table(["OUTCOME", Column(f"{batch.unit}s".upper(), right=True)], rows)
    rates = [PassRate(**pass_rate) for pass_rate in facts["pass_rates"]]
    if rates:
        name = "pass@{}" if batch.repeat > 1 else "passed"
        entries = [(name.format(rate.k), *(f"{each:.1%}" for each in rate[1:4])) for rate in rates]
        heads = (Column(head, right=True) for head in ("RATE", "FROM", "TO"))
        print()
        print_table([f"{CONFIDENCE:.0%} INTERVAL", *heads], entries)
    if waiting:
        print()
        entries = [(row.name, *call) for row in waiting for call in row.list_calls()]
        columns = [Column("WAITS", fit="middle"), "", Column("CALL", fit="end"), "STATE"]
        print_table(columns, entries[:_MAX_QUESTIONS])
        if len(entries) > _MAX_QUESTIONS:
            print(f"… and {len(entries) - _MAX_QUESTIONS:,} more")
        print(f"\nAnswer with: {approve_command(batch)}")


@takes_options(BatchOptions, "workers", "max_cost", "max_forecast", "stop_after")
def set_limits(
    folder: FolderArgument, *, options: BatchOptions, output: OutputOption = "text"
) -> None:
    """Change the limits of a batch, also while it runs. Without options, shows them.

    \b
      amplifier batch set out
      amplifier batch set out --workers 2 --max-cost 20

    A running batch applies them within about a second. With fewer workers, running rows are not
    stopped; with a lower --max-cost, --max-forecast or --stop-after, the batch may stop.
    """
    options = options.validate()
    batch = BatchFolder(folder)
    if is_url(batch.shown) and options.settings() and not is_driven_here(folder):
        raise UsageError(
            "the limits of a batch at a URL are set by the process that runs it",
            hint=f"On that machine, or when it goes on: amplifier batch resume {shlex.quote(batch.shown)} --max-cost …",
        )
    batch.change(options.settings())
    limits = _limits(batch.facts)
    cost, forecast = (
        f"${limits[name]}" if limits[name] else "no limit" for name in ("max_cost", "max_forecast")
    )
    rows = [
        ("workers", str(limits["workers"])),
        ("cost of all rows", cost),
        ("forecast of all rows", forecast),
        ("failed rows", limits["stop_after"] or "no limit"),
    ]
    columns = ["", Column("AT MOST", right=True)]
    print_listing(output, {"schema_version": 1, **limits}, columns, rows)


def _limits(facts: dict[str, Any]) -> dict[str, Any]:
    limits = {name: facts.get(name) for name in ("max_cost", "max_forecast", "stop_after")}
    return {"workers": facts.get("workers") or DEFAULT_WORKERS, **limits}


def batch() -> None:
    """Print the JSON Schema of the lines of results.jsonl."""
    print(json_text(batch_schema(json.loads(read_schema("result")))))


def merge(
    context: typer.Context,
    folders: Annotated[
        list[Path],
        argument("FOLDER", "The folders of the shards, or their URLs.", parser=find_folder),
    ],
    target: Annotated[
        Path,
        option(
            "-o, --to FOLDER",
            "Folder of the merged batch; must be new or empty.",
            parser=local_folder,
        ),
    ],
) -> None:
    """Merge the results of shards.

    \b
      amplifier batch merge part-1 part-2 -o all

    Exits like a batch with all of their rows.
    """
    batch = merged([BatchFolder(folder) for folder in folders], target)
    counts, _ = batch.counts()
    to_stderr(f"{counts.ended:,} of {batch.runs:,} {batch.unit}s in {target}")
    invocation: Invocation = context.obj
    invocation.outcome = outcome_of_batch(batch, counts)


def approve(
    folder: FolderArgument,
    rows: Annotated[list[str] | None, argument("ROW", "The ids of the rows.")] = None,
    every: Annotated[bool, option("--all", "Answer the questions of all rows that wait.")] = False,
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
