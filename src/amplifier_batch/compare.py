"""`amplifier compare`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.commands.finish import Invocation
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.statistics.comparison import CONFIDENCE, Comparison, Difference
from amplifier_batch.statistics.comparison import compare as compared

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_MAX_FLIPS = 20
_COLUMNS = (
    "MEASURE",
    Column("A", right=True),
    Column("B", right=True),
    Column("B - A", right=True),
    Column(f"{CONFIDENCE:.0%} INTERVAL", right=True),
    "",
)
_HIGHER_IS_BETTER = ("passed",)


@app.command()
def compare(
    context: typer.Context,
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The folder of a batch.", show_default=False)
    ],
    b: Annotated[
        Path,
        typer.Argument(
            metavar="B", help="The folder of a batch over the same input.", show_default=False
        ),
    ],
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            min=0,
            max=100,
            metavar="POINTS",
            help="How many percentage points fewer rows may pass in B.",
        ),
    ] = 0.0,
    output: OutputOption = "text",
) -> None:
    """Compare two batches over the same input: does B do better than A?

    \b
      amplifier batch run plan.yaml eval.jsonl -o a
      amplifier batch run new-plan.yaml eval.jsonl -o b
      amplifier compare a b --tolerance 2

    Compares row by row. A difference counts if its interval does not contain 0. Exits with 9 if
    B is worse by clearly more than the tolerance.
    """
    first, second = BatchFolder(a), BatchFolder(b)
    found = compared(first, second)
    is_worse = found.is_worse_by(tolerance / 100)
    if output == "json":
        print(json_text(_facts(found, is_worse)))
        if is_worse:
            # Nothing may follow the object.
            raise typer.Exit(Ending.CHECK_FAILED.exit_code)
        return
    _print(first, second, found)
    if is_worse:
        invocation: Invocation = context.obj
        passed = found.measures[0]
        message = f"fewer rows pass in {b}: {passed.b:.1%} instead of {passed.a:.1%}"
        invocation.outcome = Outcome(Ending.CHECK_FAILED, message)


def _facts(found: Comparison, is_worse: bool) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "verdict": found.verdict,
        "is_worse_than_tolerated": is_worse,
        "confidence": CONFIDENCE,
        "measures": [
            {**measure._asdict(), "is_clear": measure.is_clear} for measure in found.measures
        ],
        "flips": [flip._asdict() for flip in found.flips],
        "unpaired": found.unpaired,
    }


def _print(first: BatchFolder, second: BatchFolder, found: Comparison) -> None:
    for line in _plan_changes(first, second):
        print(for_terminal(line))
    print_table(_COLUMNS, [_row(measure) for measure in found.measures])
    if found.flips:
        how = "in only" if first.repeat == second.repeat == 1 else "more often in"
        print(f"\n{describe.count(len(found.flips), 'row')} passed {how} one of them:")
        shown = [(str(flip.number), *flip[1:]) for flip in found.flips[:_MAX_FLIPS]]
        print_table([Column("NUMBER", right=True), Column("ROW", fit="middle"), "A", "B"], shown)
        if len(found.flips) > _MAX_FLIPS:
            print(f"… and {len(found.flips) - _MAX_FLIPS} more (--output json has all)")
    if found.unpaired:
        rows = describe.count(found.unpaired, "row")
        print(f"\nnot compared: {rows} that ended in only one of them")
    rows = describe.count(found.measures[0].rows, "row")
    verdict = "no clear difference" if found.verdict == "undecided" else f"B is {found.verdict}"
    print(f"\n{verdict} ({rows}, {CONFIDENCE:.0%} intervals)")


def _row(one: Difference) -> list[str]:
    share = one.name in _HIGHER_IS_BETTER
    values = [_amount(value, share) for value in (one.a, one.b)]
    changes = [_amount(value, share, sign="+") for value in (one.b - one.a, one.low, one.high)]
    judged = ""
    if one.is_clear:
        judged = "better" if (one.low > 0) == share else "worse"
    return [one.name, *values, changes[0], f"{changes[1]} … {changes[2]}", judged]


def _amount(value: float, is_share: bool, sign: str = "") -> str:
    if is_share:
        return format(value, f"{sign}.1%")
    return format(value, f"{sign},.4g" if abs(value) < 10_000 else f"{sign},.0f")


def _plan_changes(first: BatchFolder, second: BatchFolder) -> Iterator[str]:
    """Yield the differences of the plans, line by line."""
    old, new = _read_plan(first), _read_plan(second)
    a, b = first.shown, second.shown
    changes = list(difflib.unified_diff(old, new, a, b, n=1, lineterm=""))
    yield from (*changes, "") if changes else ("The plans are the same.", "")


def _read_plan(batch: BatchFolder) -> list[str]:
    prompt = batch.facts["prompt"]
    return [*batch.plan.splitlines(), *([] if prompt is None else [f"# prompt: {prompt}"])]
