"""`amplifier session search`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import from_index
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.sessions.index import Match
from amplifier_app.sessions.summary import short_id

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def search(
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="Words to find; all of them must occur."),
    ],
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, metavar="N", help="List at most N sessions; 0 lists all."
        ),
    ] = 10,
    output: OutputOption = "text",
) -> None:
    """Search titles, prompts, answers and tool calls of all sessions.

    \b
      amplifier session search pytest fails
      amplifier session search "exit code" --output json

    A word also matches the beginning of a longer one. Exits with 1 if nothing is found.
    """
    text = " ".join(words).encode("utf-8", "replace").decode()
    if not text.strip():
        raise UsageError("no words to search for")
    found = from_index(lambda index: index.search(text, limit))
    if output == "json":
        print(json_text([_as_json(match) for match in found.matches]))
    elif os.isatty(1):
        for match in found.matches:
            _print(match)
    else:
        for match in found.matches:
            print(f"{match.session.id}: {_snippet(match)}")
    more = found.total - len(found.matches)
    if not found.total:
        to_stderr(f"no session contains {one_line(text)!r}")
        raise typer.Exit(1)
    if more and output == "text":
        to_stderr(f"{more:,} more: -n 0")


def _as_json(match: Match) -> dict[str, object]:
    return {**match.session._asdict(), "snippet": "".join(text for text, _ in match.snippet)}


def _snippet(match: Match) -> str:
    return one_line("".join(text for text, _ in match.snippet), 400)


def _print(match: Match) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    session = match.session
    head = Text.assemble(
        (short_id(session.id), "bold"),
        "  ",
        one_line(session.about, 80),
        (f"  {describe.age(session.updated)}", "dim"),
    )
    console.print(head, no_wrap=True, overflow="ellipsis")
    line = Text()
    for text, is_match in match.snippet:
        # A line break in the text is shown as a space.
        style = "bold yellow" if is_match else "dim"
        line.append(" ".join(one_line(f"|{text}|", 400)[1:-1].split("\n")), style)
    console.print(Padding(line, (0, 0, 0, 4)))
