"""`amplifier compare`: its commands, each imported when it is called."""

from __future__ import annotations

from amplifier_app.commands.group import command_group

_HELP = """Compare two batches, or two plans over the same rows.

\b
  amplifier compare a b --tolerance 2
  amplifier compare a --power 5%
  amplifier compare run plan.yaml new-plan.yaml eval.jsonl -o out --until decided
"""

app = command_group(
    "compare",
    "amplifier_batch.commands",
    {
        "batches": ("comparing", "Compare two batches over the same input (the default)."),
        "run": ("interleaving", "Run two plans over the same rows, and compare them."),
    },
    help=_HELP,
    default="batches",
)
