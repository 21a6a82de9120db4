"""`amplifier batch`: one module per command, imported when invoked."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

app = command_group(
    "batch",
    {
        "run": "Run a plan over every row of an input.",
        "resume": "Continue a batch that was interrupted or stopped.",
        "status": "Show the progress of a batch.",
        "retry": "Run the failed rows again.",
        "set": "Change the limits of a batch, also while it runs.",
        "report": "Write a report of the results.",
        "merge": "Merge the results of shards.",
    },
    where="amplifier_batch.commands.{}",
    help="Run a plan over many inputs.",
)
