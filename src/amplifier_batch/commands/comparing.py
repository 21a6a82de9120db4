"""`amplifier compare batches`, which is also `amplifier compare`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import difflib
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.commands.finish import Invocation
from amplifier_app.render.table import Column, Format, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.remote import find_folder
from amplifier_batch.statistics.anytime import CONFIDENCE as ANYTIME
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
    typer.Option(
        "--tolerance",
        min=0,
        max=100,
        metavar="POINTS",
        help="How many percentage points fewer rows may pass in B.",
    ),
]


def batches(
    context: typer.Context,
    a: Annotated[
        Path | None,
        typer.Argument(
            metavar="A",
            parser=find_folder,
            help="The folder of a batch, or its URL.",
            show_default=False,
        ),
    ] = None,
    b: Annotated[
        Path | None,
        typer.Argument(
            metavar="B",
            parser=find_folder,
            help="The folder of a batch over the same input, or its URL.",
            show_default=False,
        ),
    ] = None,
    tolerance: ToleranceOption = 0.0,
    power: Annotated[
        str | None,
        typer.Option(
            "--power",
            metavar="POINTS",
            help="Only print how many rows find such a difference of pass rates; A and B may be missing.",
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
