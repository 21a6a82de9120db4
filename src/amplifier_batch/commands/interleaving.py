"""`amplifier compare run`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.stdio import claim_stdout, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import takes_options
from amplifier_app.render.table import OutputOption
from amplifier_batch.commands.comparing import ToleranceOption, show_comparison
from amplifier_batch.commands.tables import open_scoring
from amplifier_batch.execution.interleave import Interleaving
from amplifier_batch.execution.setup import new_facts, plan_request, require_same
from amplifier_batch.input import STDIN
from amplifier_batch.options import (
    DEFAULT_WORKERS,
    ROW_OPTIONS,
    ApproveOption,
    BatchOptions,
    NewFolderOption,
    QuietOption,
    RowOptions,
    parse_dollars,
)
from amplifier_batch.record.folder import BatchFolder, approve_command, new_folder
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.writer import writing
from amplifier_batch.scoring import Scoring
from amplifier_batch.statistics.anytime import DECIDED
from amplifier_support.named_tuple import NamedTuple

_SIDES = ("a", "b")


class _Side(NamedTuple):
    """A plan of the comparison: its batch, what runs it, and what scores its answers."""

    batch: BatchFolder
    request: Request
    scoring: Scoring | None


@takes_options(RowOptions, "prompt", "workdir", "score", "max_cost_row")
@takes_options(Request, *ROW_OPTIONS)
@takes_options(BatchOptions, "workers", "max_cost")
def run(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="Plan file, or name of a profile.", show_default=False),
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The plan to compare it with.", show_default=False)
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help="The rows, as 'batch run' takes them.", show_default=False
        ),
    ],
    *,
    folder: NewFolderOption,
    until: Annotated[
        Literal["all", "decided"],
        typer.Option(
            "--until",
            help="Stop after all rows, or as soon as one plan is clearly better.",
        ),
    ] = "all",
    tolerance: ToleranceOption = 0.0,
    row: RowOptions,
    request: Request,
    approve: ApproveOption = "deny",
    options: BatchOptions,
    quiet: QuietOption = False,
    output: OutputOption = "text",
) -> None:
    """Run two plans over the same rows side by side, and compare them.

    \b
      amplifier compare run plan.yaml new-plan.yaml eval.jsonl -o out
      amplifier compare run plan.yaml new-plan.yaml eval.jsonl -o out --until decided --max-cost 20

    The batches are FOLDER/a and FOLDER/b. Rows run in an order that does not depend on the input's. With
    --until decided, the interval of the pass rates holds whenever the comparison stops: equal plans are
    called different in at most 5 of 100 comparisons. The same command continues one that was stopped.
    Exits with 9 if B is worse by clearly more than the tolerance.
    """
    invocation: Invocation = context.obj
    if source == STDIN:
        raise UsageError("the input of a comparison cannot be stdin", hint="Save it to a file.")
    options = options.validate()
    each = parse_dollars(row.max_cost_row, "--max-cost-row")
    requests = [plan_request(plan, request, each)._replace(approve=approve) for plan in (a, b)]
    with claim_stdout() as stdout:
        chosen = [choose(request, stdout) for request in requests]
        facts = [
            {**new_facts(request, plan, source, row), "until": until}
            for request, plan in zip(requests, chosen, strict=True)
        ]
        sides = _open_sides(folder, facts, requests, chosen, options)
        interleaving = _execute(sides, options, until_decided=until == DECIDED, quiet=quiet)
    if (stopped := interleaving.stopped) is not None:
        hint = stopped.hint or "Continue with the same command."
        done = f"{interleaving.compared:,} of {len(interleaving.rows):,} rows compared"
        invocation.outcome = Outcome(stopped.ending, f"{stopped.message}; {done}", hint)
    elif waiting := [one.batch for one in sides if one.batch.counts()[0].outcomes[WAITING]]:
        answers = [f"Answer: {approve_command(batch)}" for batch in waiting]
        hint = "\n".join([*answers, "Then continue with the same command."])
        invocation.outcome = Outcome(Ending.WAITING, "rows wait for approval", hint)
    if not interleaving.compared or (stopped and stopped.ending is not Ending.BUDGET):
        return
    if interleaving.saved and not quiet:
        to_stderr(f"decided after {interleaving.compared:,} of {len(interleaving.rows):,} rows")
    first, second = (side.batch for side in sides)
    invocation.outcome = show_comparison(first, second, tolerance, output) or invocation.outcome


def _execute(
    sides: Sequence[_Side], options: BatchOptions, *, until_decided: bool, quiet: bool
) -> Interleaving:
    """Run the rows, then score the answers, unless the comparison was stopped."""
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(writing(side.batch)) for side in sides]
        for writer in writers:
            writer.reopen_answered()
        max_cost = None if options.max_cost == "none" else options.max_cost
        interleaving = Interleaving(
            writers,
            [side.request for side in sides],
            until_decided=until_decided,
            max_cost=parse_dollars(max_cost, "--max-cost"),
            ahead=options.workers or DEFAULT_WORKERS,
            quiet=quiet,
        )
        run_loop(interleaving.run())
    for side in sides:
        if side.scoring is not None and interleaving.stopped is None:
            run_loop(side.scoring.run(side.batch))
    return interleaving


def _open_sides(
    folder: Path,
    facts: Sequence[dict[str, Any]],
    requests: Sequence[Request],
    chosen: Sequence[Chosen],
    options: BatchOptions,
) -> list[_Side]:
    """Create the batches, or open the batches of a comparison that was stopped.

    Raises:
        ConfigError: The folder contains something else, or a comparison of other plans.
        SessionError: It cannot be read or written.
    """
    # Both have the limit, so that a model without a price is noticed; their sum is checked as well.
    workers = max(1, (options.workers or DEFAULT_WORKERS) // 2)
    settings = options._replace(workers=workers).settings()
    folders = [folder / name for name in _SIDES]
    if all((path / "batch.json").exists() for path in folders):
        batches = [BatchFolder(path) for path in folders]
        for batch, now in zip(batches, facts, strict=True):
            batch.require_unedited()
            require_same(batch, now)
            batch.change(settings)
    else:
        with new_folder(folder):
            batches = [
                BatchFolder.create(path, {**of_batch, **settings}, plan.plan.to_yaml())
                for path, of_batch, plan in zip(folders, facts, chosen, strict=True)
            ]
    return [
        _Side(batch, request, open_scoring(batch, request, plan))
        for batch, request, plan in zip(batches, requests, chosen, strict=True)
    ]
