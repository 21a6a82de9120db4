"""`amplifier batch report`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.runtime import describe
from amplifier_batch.options import FolderArgument
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.reports.page import SessionPages, as_page
from amplifier_batch.reports.text import as_groups, as_junit, as_markdown


def report(
    folder: FolderArgument,
    format: Annotated[
        Literal["md", "junit", "html"],
        typer.Option("--format", help="Format of the report."),
    ] = "md",
    to: Annotated[
        Path | None,
        typer.Option("--to", "-o", metavar="FILE", help="Write to FILE, not to stdout."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="FIELD",
            help="Show the share that passed and the means of the scores by the values of a field.",
        ),
    ] = None,
    with_sessions: Annotated[
        bool,
        typer.Option(
            "--sessions",
            help="With --format html and --to: also write a page for the session of each row in the table, to "
            "a folder next to FILE.",
        ),
    ] = False,
) -> None:
    """Write a report of the results, without secrets.

    \b
      amplifier batch report out
      amplifier batch report out --by language
      amplifier batch report out --format junit --to results.xml
      amplifier batch report out --format html --to report.html --sessions
    """
    batch = BatchFolder(folder)
    if by is not None:
        if format != "md" or with_sessions:
            raise UsageError("--by needs --format md, without --sessions")
        text = "".join(as_groups(batch, by))
        if to is None:
            sys.stdout.write(for_terminal(text) if sys.stdout.isatty() else text)
        else:
            write_whole(to, text)
        return
    if to is None:
        if with_sessions:
            raise UsageError("--sessions needs a file", hint="Pass --to FILE.html")
        if format == "html" and sys.stdout.isatty():
            raise UsageError("an HTML report needs a file", hint="Pass --to FILE.html")
        for piece in pieces(batch, format):
            sys.stdout.write(for_terminal(piece) if sys.stdout.isatty() else piece)
        return
    pages = None
    if with_sessions:
        if format != "html":
            raise UsageError("--sessions needs --format html")
        pages = SessionPages(batch.sessions, to)
    write_whole(to, "".join(pieces(batch, format, pages)))
    below = f", and {describe.count(pages.written, 'session')} to {pages.folder}" if pages else ""
    to_stderr(f"Written to {to}{below}.")


def pieces(folder: BatchFolder, kind: str, pages: SessionPages | None = None) -> Iterator[str]:
    """The text of a report in pieces, without lone surrogates.

    Args:
        folder: The batch.
        kind: `md`, `junit` or `html`.
        pages: Writes the pages of the sessions that an HTML page links to.

    Raises:
        SessionError: The results cannot be read.
    """
    texts = {
        "md": lambda: as_markdown(folder),
        "junit": lambda: as_junit(folder),
        "html": lambda: as_page(folder, pages),
    }[kind]()
    return (text.encode("utf-8", "replace").decode() for text in texts)
