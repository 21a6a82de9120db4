"""`amplifier batch`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "batch",
    "amplifier_batch.commands",
    {
        "run": ("running", "Run a plan over every row of an input."),
        "resume": ("running", "Continue a batch that was interrupted or stopped."),
        "status": ("results", "Show the progress of a batch."),
        "approve": ("approving", "List or answer the questions of waiting rows."),
        "retry": ("running", "Run the failed rows again."),
        "set": ("results", "Change the limits of a batch, also while it runs."),
        "report": ("reporting", "Write a report of the results."),
        "results": ("tables", "Write the results as one table: CSV, JSON lines or Parquet."),
        "score": ("tables", "Score the answers, without running any row again."),
        "merge": ("merging", "Merge the results of shards."),
    },
    help="Run a plan over many inputs.",
)
