"""`amplifier compare batches`, which is also `amplifier compare`, and `amplifier compare run`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import contextlib
import difflib
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import claim_stdout, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option, takes_options
from amplifier_app.render.table import Column, Format, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_batch.commands.tables import give_scores, open_scoring
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
from amplifier_batch.record.remote import find_folder
from amplifier_batch.record.writer import writing
from amplifier_batch.scoring import Scoring
from amplifier_batch.statistics.anytime import CONFIDENCE as ANYTIME
from amplifier_batch.statistics.anytime import DECIDED
from amplifier_batch.statistics.comparison import (
    POWER,
    Comparison,
    Difference,
    Planning,
    compare,
    parse_points,
    plan_rows,
)
from amplifier_batch.statistics.paired import CONFIDENCE
from amplifier_support.named_tuple import NamedTuple

_MAX_FLIPS = 20
_COLUMNS = (
    "MEASURE",
    Column("A", right=True),
    Column("B", right=True),
    Column("B - A", right=True),
    Column("INTERVAL", right=True),
    Column("P", right=True, drop=1),
    Column("ROWS", right=True, drop=2),
    "",
)
_PASSED = "passed"
_VERDICTS = {
    "better": "more rows pass in B",
    "worse": "fewer rows pass in B",
    "undecided": "no clear difference in the rows that pass",
}
_LESS_IS_BETTER = ("cost in dollars", "tokens", "seconds", "steps", "tool calls")


ToleranceOption = Annotated[
    float,
    option(
        "--tolerance POINTS", "How many percentage points fewer rows may pass in B.", min=0, max=100
    ),
]


def batches(
    context: typer.Context,
    a: Annotated[
        Path | None, argument("A", "The folder of a batch, or its URL.", parser=find_folder)
    ] = None,
    b: Annotated[
        Path | None,
        argument("B", "The folder of a batch over the same input, or its URL.", parser=find_folder),
    ] = None,
    tolerance: ToleranceOption = 0.0,
    power: Annotated[
        str | None,
        option(
            "--power POINTS",
            "Only print how many rows find such a difference of pass rates; A and B may be missing.",
        ),
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Compare two batches over the same input: does B do better than A?

    \b
      amplifier batch run plan.yaml eval.jsonl -o a
      amplifier batch run new-plan.yaml eval.jsonl -o b
      amplifier compare a b --tolerance 2
      amplifier compare a --power 5%

    Compares row by row, with exact tests. A difference counts if equal plans would have it in at most 2 of
    100 comparisons. Exits with 9 if B is worse by clearly more than the tolerance.
    """
    invocation: Invocation = context.obj
    folders = [None if folder is None else BatchFolder(folder) for folder in (a, b)]
    if power is not None:
        planning = plan_rows(parse_points(power, "--power"), *folders)
        if output == "json":
            print(json_text(_planning_facts(planning)))
        else:
            _print_planning(planning)
        return
    first, second = folders
    if first is None or second is None:
        raise UsageError("expected the folders of two batches", hint="Or --power POINTS.")
    invocation.outcome = show_comparison(first, second, tolerance, output) or invocation.outcome


def show_comparison(
    first: BatchFolder, second: BatchFolder, tolerance: float, output: Format
) -> Outcome | None:
    """Print the comparison of two batches.

    Args:
        first: The first batch.
        second: The second one.
        tolerance: How many percentage points fewer rows may pass in the second one.
        output: The format.

    Returns:
        The outcome if the second batch is worse; None otherwise.

    Raises:
        ConfigError: They have different inputs, or no row has ended in both.
        SessionError: The results cannot be read.
    """
    comparison = compare(first, second)
    is_worse = comparison.is_worse_by(tolerance / 100)
    if output == "json":
        print(json_text(_facts(comparison, is_worse)))
    else:
        _print(first, second, comparison)
    if not is_worse:
        return None
    if output == "json":
        # Nothing may follow the object.
        raise typer.Exit(Ending.CHECK_FAILED.exit_code)
    passed = comparison.measures[0]
    message = f"fewer rows pass in {second.shown}: {passed.b:.1%} instead of {passed.a:.1%}"
    return Outcome(Ending.CHECK_FAILED, message)


def _facts(comparison: Comparison, is_worse: bool) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "verdict": comparison.verdict,
        "is_worse_than_tolerated": is_worse,
        "confidence": CONFIDENCE,
        "confidence_of_passed": ANYTIME if comparison.until_decided else CONFIDENCE,
        "measures": [measure._asdict() for measure in comparison.measures],
        "flips": [flip._asdict() for flip in comparison.flips],
        "unpaired": comparison.unpaired,
    }


def _print(first: BatchFolder, second: BatchFolder, result: Comparison) -> None:
    for line in _plan_changes(first, second):
        print(for_terminal(line))
    print_table(_COLUMNS, [_row(measure) for measure in result.measures])
    if result.flips:
        how = "in only" if first.repeat == second.repeat == 1 else "more often in"
        print(f"\n{describe.count(len(result.flips), 'row')} passed {how} one of them:")
        flips = [(str(flip.number), *flip[1:]) for flip in result.flips[:_MAX_FLIPS]]
        print_table([Column("NUMBER", right=True), Column("ROW", fit="middle"), "A", "B"], flips)
        if len(result.flips) > _MAX_FLIPS:
            print(f"… and {len(result.flips) - _MAX_FLIPS} more (--output json has all)")
    if result.unpaired:
        rows = describe.count(result.unpaired, "row")
        print(
            f"\nnot compared: {rows} that did not end in both, wait for approval or have no score"
        )
    rows = describe.count(result.measures[0].rows, "row")
    verdict = _VERDICTS[result.verdict]
    if result.until_decided:
        print(f"\n{verdict} ({rows}, {ANYTIME:.0%} interval that holds at any time)")
        print(f"The other measures have {CONFIDENCE:.0%} intervals for a fixed number of rows.")
    else:
        print(f"\n{verdict} ({rows}, {CONFIDENCE:.0%} intervals)")


def _row(measure: Difference) -> list[str]:
    is_share = measure.name == _PASSED
    values = [_amount(value, is_share) for value in (measure.a, measure.b)]
    change = _amount(measure.b - measure.a, is_share, sign="+")
    interval = "-"
    if measure.low is not None and measure.high is not None:
        ends = (_amount(value, is_share, sign="+") for value in (measure.low, measure.high))
        interval = " … ".join(ends)
    p = "<0.001" if measure.p < 0.001 else f"{measure.p:.3f}"
    judged = _judge(measure) if measure.is_clear else ""
    return [measure.name, *values, change, interval, p, f"{measure.rows:,}", judged]


def _judge(measure: Difference) -> str:
    is_more = measure.b > measure.a
    if measure.name == _PASSED:
        return "better" if is_more else "worse"
    if measure.name in _LESS_IS_BETTER:
        return "worse" if is_more else "better"
    return "higher" if is_more else "lower"


def _amount(value: float, is_share: bool, sign: str = "") -> str:
    if is_share:
        return format(value, f"{sign}.1%")
    return format(value, f"{sign},.4g" if abs(value) < 10_000 else f"{sign},.0f")


def _planning_facts(planning: Planning) -> dict[str, Any]:
    effect = planning.effect_of_input
    return {
        "schema_version": 1,
        **planning._asdict(),
        "effect_of_input": effect if effect is not None and math.isfinite(effect) else None,
        "samples": [sample._asdict() for sample in planning.samples],
        "power": POWER,
        "confidence": CONFIDENCE,
    }


def _print_planning(planning: Planning) -> None:
    print(
        f"To find a difference of {_points(planning.effect)} in {POWER:.0%} of comparisons "
        f"({CONFIDENCE:.0%} intervals):\n"
    )
    rows = [
        (
            f"{sample.differing:.1%}",
            f"{sample.rows:,}",
            "" if sample.cost is None else describe.cost(Decimal(str(sample.cost))),
        )
        for sample in planning.samples
    ]
    heads = ("OUTCOMES THAT DIFFER", "ROWS", "COST OF BOTH")
    print_table([Column(head, right=True) for head in heads], rows)
    if planning.input_rows is not None and planning.effect_of_input is not None:
        conclusion = f"find a difference of {_points(planning.effect_of_input)}"
        if math.isinf(planning.effect_of_input):
            conclusion = "are too few for any difference"
        print(f"\nThe {describe.count(planning.input_rows, 'row')} of the input {conclusion}.")


def _points(share: float) -> str:
    return f"{share * 100:.3g} points"


def _plan_changes(first: BatchFolder, second: BatchFolder) -> Iterator[str]:
    """Yield the differences of the plans, line by line."""
    old, new = _read_plan(first), _read_plan(second)
    a, b = first.shown, second.shown
    changes = list(difflib.unified_diff(old, new, a, b, n=1, lineterm=""))
    yield from (*changes, "") if changes else ("The plans are the same.", "")


def _read_plan(batch: BatchFolder) -> list[str]:
    prompt = batch.facts["prompt"]
    return [*batch.plan.splitlines(), *([] if prompt is None else [f"# prompt: {prompt}"])]


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
    a: Annotated[str, argument("A", "Plan file, or name of a profile.")],
    b: Annotated[str, argument("B", "The plan to compare it with.")],
    source: Annotated[Path, argument("INPUT", "The rows, as 'batch run' takes them.")],
    *,
    folder: NewFolderOption,
    until: Annotated[
        Literal["all", "decided"],
        option("--until", "Stop after all rows, or as soon as one plan is clearly better."),
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
            give_scores(side.batch, side.scoring, quiet=quiet)
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
