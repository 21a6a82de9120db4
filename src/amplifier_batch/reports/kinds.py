"""The kinds of reports of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.reports.page import as_page
from amplifier_batch.reports.session_pages import SessionPages
from amplifier_batch.reports.text import as_junit, as_markdown


def report(folder: BatchFolder, kind: str, pages: SessionPages | None = None) -> Iterator[str]:
    """The text of a report in pieces, without lone surrogates.

    Args:
        folder: The batch.
        kind: One of `KINDS`, or `html`.
        pages: Writes the pages of the sessions that an HTML page links to.

    Raises:
        SessionError: The results cannot be read.
    """
    pieces = as_page(folder, pages) if kind == "html" else KINDS[kind](folder)
    return (piece.encode("utf-8", "replace").decode() for piece in pieces)


KINDS: Mapping[str, Callable[[BatchFolder], Iterable[str]]] = {
    "md": as_markdown,
    "junit": as_junit,
}
"""Kind of a report → function that makes its text."""
