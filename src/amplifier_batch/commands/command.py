"""`amplifier batch` and `amplifier compare`: their commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "batch",
    "amplifier_batch.commands",
    {
        "run": ("running:run", "Run a plan over every row of an input."),
        "resume": ("running:resume", "Continue a batch that was interrupted or stopped."),
        "status": ("results:status", "Show the progress of a batch."),
        "approve": ("results:approve", "List or answer the questions of waiting rows."),
        "retry": ("running:retry", "Run the failed rows again."),
        "set": ("results:set_limits", "Change the limits of a batch, also while it runs."),
        "report": ("tables:report", "Write a report of the results."),
        "results": (
            "tables:results",
            "Write the results as one table: CSV, JSON lines or Parquet.",
        ),
        "score": ("tables:score", "Score the answers, without running any row again."),
        "merge": ("results:merge", "Merge the results of shards."),
    },
    help="Run a plan over many inputs.",
)

_COMPARE_HELP = """Compare two batches, or two plans over the same rows.

\b
  amplifier compare a b --tolerance 2
  amplifier compare a --power 5%
  amplifier compare run plan.yaml new-plan.yaml eval.jsonl -o out --until decided
"""

compare_app = command_group(
    "compare",
    "amplifier_batch.commands",
    {
        "batches": ("comparing:batches", "Compare two batches over the same input (the default)."),
        "run": ("comparing:run", "Run two plans over the same rows, and compare them."),
    },
    help=_COMPARE_HELP,
    default="batches",
)
