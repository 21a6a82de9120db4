"""`amplifier batch merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.merging import merge as merged
from amplifier_batch.statistics.summary import outcome_of_batch


def merge(
    context: typer.Context,
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="The folders of the shards.", show_default=False),
    ],
    target: Annotated[
        Path,
        typer.Option(
            "--to",
            "-o",
            metavar="FOLDER",
            help="Folder of the merged batch; must be new or empty.",
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
