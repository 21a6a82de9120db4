"""`amplifier batch report`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import sys
from typing import Annotated, Literal

import typer

from amplifier_app.batch.folder import BatchFolder
from amplifier_app.batch.report import report as pieces
from amplifier_app.commands.batch.setup import FolderArgument

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def report(
    folder: FolderArgument,
    format: Annotated[
        Literal["md", "junit", "csv", "html"],
        typer.Option("--format", help="Format of the report."),
    ] = "md",
) -> None:
    """Print a report of the results on stdout.

    \b
      amplifier batch report out
      amplifier batch report out --format junit > results.xml
      amplifier batch report out --format html > out/report.html
    """
    for piece in pieces(BatchFolder(folder), format):
        sys.stdout.write(piece)
