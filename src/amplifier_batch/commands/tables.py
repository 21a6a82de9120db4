"""`amplifier batch results|score|report`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import contextlib
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.json_text import json_text
from amplifier_app.base.locks import hold_lock
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import claim_stdout, terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import option
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.runtime import describe
from amplifier_batch.execution.setup import reopen_request
from amplifier_batch.options import FolderArgument, ScoreOption, TakeOverOption, WhereOption
from amplifier_batch.record.folder import SCORING_LOCK, BatchFolder
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.remote import driving
from amplifier_batch.reports.page import SessionPages, as_page
from amplifier_batch.reports.text import as_groups, as_junit, as_markdown
from amplifier_batch.scores import load_scorers, read_scores
from amplifier_batch.scoring import Facts, Scoring
from amplifier_batch.statistics.score_means import batch_means, judge_in_words, mean_cells
from amplifier_batch.status_line import StatusLine
from amplifier_batch.table import Table, Where, as_csv, as_lines, encodable, write_parquet
from amplifier_support.files import system_errors_as

_PARQUET = ".parquet"


def results(
    folder: FolderArgument,
    where: WhereOption = None,
    to: Annotated[
        Path | None,
        option("-o, --to FILE", "Write to FILE: .csv, .jsonl or .parquet, not to stdout."),
    ] = None,
) -> None:
    """Write the results as one table: the input, the answer, scores, cost and how each run ended.

    \b
      amplifier batch results out > results.csv
      amplifier batch results out --where "outcome=ok and language=de" --to results.parquet

    One row for each run that has ended, in the order of the input, without secrets.
    """
    runs = Table(BatchFolder(folder))
    if runs.note:
        to_stderr(f"amplifier: {runs.note}")
    chosen = None if where is None else Where(where, runs.columns)
    if to is None:
        for piece in as_csv(runs, chosen):
            sys.stdout.write(for_terminal(piece) if sys.stdout.isatty() else piece)
        return
    if to.suffix == _PARQUET:
        write_parquet(runs, to, chosen)
    elif to.suffix in (".csv", ".jsonl"):
        pieces = (as_csv if to.suffix == ".csv" else as_lines)(runs, chosen)
        write_whole(to, "".join(map(encodable, pieces)))
    else:
        raise UsageError(f"--to: expected .csv, .jsonl or .parquet, got {to.name!r}")
    to_stderr(f"Written to {to}.")


def score(
    context: typer.Context,
    folder: FolderArgument,
    scores: ScoreOption = None,
    again: Annotated[bool, option("--again", "Also score the runs that have a score.")] = False,
    take_over: TakeOverOption = False,
    output: OutputOption = "text",
) -> None:
    """Score the answers of a batch, without running any row again.

    \b
      amplifier batch score out --score 'tests=./score.sh'
      amplifier batch score out --score 'f1=python:scores.py:f1' --score 'tone=judge:judge.yaml'

    Uses the scores of the plan, of 'batch run' and of --score. A command finds the answer in the file
    AMPLIFIER_ANSWER_FILE and the row in AMPLIFIER_ROW_FILE; the last line it prints is the score, as JSON:
    a number or a text. A function gets the answer, the row and the result, in a process of its own. If a
    scorer fails or reaches its time limit, the score is missing, never zero. Each score is stored at once;
    after an interrupt, the command goes on where it was. Outcomes of rows do not change.
    """
    invocation: Invocation = context.obj
    stdout = invocation.stdout = invocation.resources.enter_context(claim_stdout())
    batch = BatchFolder(folder)
    request = reopen_request(batch, stdout)
    scoring = open_scoring(batch, request, choose(request, stdout), scores or ())
    if scoring is None:
        raise UsageError("there are no scores", hint="Pass --score, or set 'scores' in the plan.")
    with driving(batch, take_over=take_over):
        new, judges = give_scores(batch, scoring, again=again)
    means = batch_means(batch)
    if output == "json":
        stdout.write(f"{json_text([mean._asdict() for mean in means])}\n")
        return
    to_stderr(
        " · ".join(filter(None, (f"amplifier: {describe.count(new, 'score')} given", judges)))
    )
    judged = any(mean.cost != 0 for mean in means)
    rows = [[*mean_cells(mean), *(judge_in_words(mean) if judged else ())] for mean in means]
    heads = ("ROWS", "MISSING", *(("AGREEMENT", "JUDGE") if judged else ()))
    columns = ["SCORE", "MEAN", *(Column(head, right=True) for head in heads)]
    for line in table(columns, rows, terminal_width(1)):
        stdout.write(f"{line}\n")


def open_scoring(
    batch: BatchFolder, request: Request, chosen: Chosen, texts: Sequence[str] = ()
) -> Scoring | None:
    """Load the scorers of a batch, of its plan and of the command line; None if there are none.

    Raises:
        AppError: A scorer is invalid or cannot be loaded.
    """
    scorers = load_scorers(chosen.plan, [*(batch.facts.get("scores") or ()), *texts])
    if not scorers:
        return None
    scoring = Scoring(scorers, request, chosen, cache=bool(batch.facts.get("cache")))
    run_loop(scoring.check())
    return scoring


def give_scores(
    batch: BatchFolder, scoring: Scoring, *, again: bool = False, quiet: bool = False
) -> tuple[int, str]:
    """Score the runs that have no score yet.

    Returns:
        How many scores were given, and what all judges of the batch have cost, as `judges: $0.12`; empty for nothing.

    Raises:
        AppError: See `Scoring.run`.
    """
    counts = batch.counts()[0]
    total = (counts.ended - counts.outcomes[WAITING]) * len(scoring.scorers)
    line, numbers = StatusLine(total, quiet=quiet), itertools.count(1)
    missing, new = Counter[str](), 0

    def given(facts: Facts | None) -> None:
        nonlocal new
        number = next(numbers)
        if facts is not None:
            new += 1
            if facts["value"] is None:
                missing[one_line(f"{facts['name']}: {facts['reason']}", 300)] += 1
            line.show(number, lambda: f"{number:,} of {total:,} scores")

    lock = batch.path / SCORING_LOCK
    with contextlib.ExitStack() as stack:
        stack.callback(line.end)
        with system_errors_as(SessionError, f"cannot lock {lock}"):
            # Another process may give the same scores, which are there afterwards.
            stack.enter_context(hold_lock(lock, None))
        run_loop(scoring.run(batch, given, again=again))
    for reason, count in missing.most_common(1):
        to_stderr(
            f"amplifier: warning: {missing.total():,} scores missing, {count:,} of them: {reason}"
        )
    if not any(scorer.is_judge for scorer in scoring.scorers):
        return new, ""
    costs = [score.cost for by_name in read_scores(batch).values() for score in by_name.values()]
    cost, least = math.fsum(filter(None, costs)), "at least " if None in costs else ""
    return new, f"judges: {least}{describe.cost(Decimal(str(cost)))}" if cost else ""


_FORMATS: dict[str, Literal["junit", "html"]] = {".xml": "junit", ".html": "html"}


def report(
    folder: FolderArgument,
    format: Annotated[
        Literal["md", "junit", "html"] | None,
        option(
            "--format",
            "Format of the report. By default html for FILE.html, junit for FILE.xml, otherwise md.",
        ),
    ] = None,
    to: Annotated[Path | None, option("-o, --to FILE", "Write to FILE, not to stdout.")] = None,
    by: Annotated[
        str | None,
        option(
            "--by FIELD",
            "Show the share that passed and the means of the scores by the values of a field.",
        ),
    ] = None,
    with_sessions: Annotated[
        bool,
        option(
            "--sessions",
            "With --format html and --to: also write a page for the session of each row in the table, to "
            "a folder next to FILE.",
        ),
    ] = False,
) -> None:
    """Write a report of the results, without secrets.

    \b
      amplifier batch report out
      amplifier batch report out --by language
      amplifier batch report out --to results.xml
      amplifier batch report out --to report.html --sessions
    """
    batch = BatchFolder(folder)
    format = format or _FORMATS.get(to.suffix if to else "", "md")
    if by is not None:
        if format != "md" or with_sessions:
            raise UsageError("--by needs --format md, without --sessions")
        text = "".join(as_groups(batch, by))
        if to is None:
            sys.stdout.write(for_terminal(text) if sys.stdout.isatty() else text)
        else:
            write_whole(to, text)
        return
    if to is None:
        if with_sessions:
            raise UsageError("--sessions needs a file", hint="Pass --to FILE.html")
        if format == "html" and sys.stdout.isatty():
            raise UsageError("an HTML report needs a file", hint="Pass --to FILE.html")
        for piece in pieces(batch, format):
            sys.stdout.write(for_terminal(piece) if sys.stdout.isatty() else piece)
        return
    pages = None
    if with_sessions:
        if format != "html":
            raise UsageError("--sessions needs --format html")
        pages = SessionPages(batch.sessions, to)
    write_whole(to, "".join(pieces(batch, format, pages)))
    below = f", and {describe.count(pages.written, 'session')} to {pages.folder}" if pages else ""
    to_stderr(f"Written to {to}{below}.")


def pieces(folder: BatchFolder, kind: str, pages: SessionPages | None = None) -> Iterator[str]:
    """The text of a report in pieces, without lone surrogates.

    Args:
        folder: The batch.
        kind: `md`, `junit` or `html`.
        pages: Writes the pages of the sessions that an HTML page links to.

    Raises:
        SessionError: The results cannot be read.
    """
    texts = {
        "md": lambda: as_markdown(folder),
        "junit": lambda: as_junit(folder),
        "html": lambda: as_page(folder, pages),
    }[kind]()
    return map(encodable, texts)
