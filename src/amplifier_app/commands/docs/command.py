"""`amplifier docs`: show the bundled documentation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.docs.pages import find_page, pages
from amplifier_app.render.table import Column, OutputOption, print_table

if TYPE_CHECKING:
    from amplifier_app.commands.docs.pages import Page

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def docs(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Page to show. [default: list all pages]", show_default=False
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", "-s", metavar="TEXT", help="List the lines that contain TEXT."),
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Show the documentation.

    \b
      amplifier docs
      amplifier docs output
      amplifier docs --search "exit code"
      amplifier docs man > ~/.local/share/man/man1/amplifier.1

    `amplifier docs man` prints a manual page of all commands, for man(1).

    Exits with 1 if a search finds nothing.
    """
    if topic == "man":
        from amplifier_app.commands.docs.pages import manual

        sys.stdout.write(manual())
        return
    chosen = pages() if topic is None else [find_page(topic)]
    if output == "json":
        _print_json(chosen, search)
    elif search is not None:
        for page, number, line in _matches(chosen, search):
            print(f"{page.topic}:{number}: {line}")
    elif topic is None:
        rows = [(page.topic, page.about) for page in chosen]
        print_table((Column("TOPIC"), Column("ABOUT", "wrap")), rows)
        print("\nShow one with: amplifier docs TOPIC")
    else:
        _show(chosen[0])
    if search is not None and not any(_matches(chosen, search)):
        raise typer.Exit(1)


def _matches(chosen: list[Page], text: str) -> list[tuple[Page, int, str]]:
    wanted = text.casefold()
    return [
        (page, number, line.strip())
        for page in chosen
        for number, line in enumerate(page.text.splitlines(), 1)
        if wanted in line.casefold()
    ]


def _print_json(chosen: list[Page], search: str | None) -> None:
    found: list[dict[str, str | int]]
    if search is not None:
        found = [
            {"topic": page.topic, "line": number, "text": line}
            for page, number, line in _matches(chosen, search)
        ]
    else:
        found = [{"topic": page.topic, "title": page.title, "text": page.text} for page in chosen]
    print(json_text(found))


def _show(page: Page) -> None:
    """Print a page: rendered, in a pager, on a terminal, otherwise as Markdown."""
    if not sys.stdout.isatty():
        sys.stdout.write(page.text)
        return
    from amplifier_app.render.markdown import markdown_lines

    lines = markdown_lines(_unwrap_paragraphs(page.text), terminal_width(1) or 80)
    show_paged("".join(f"{line}\n" for line in lines))


def _unwrap_paragraphs(text: str) -> str:
    """Markdown with each paragraph on one line: the breaks are those of the file, not of the terminal."""
    from markdown_it import MarkdownIt

    lines = text.split("\n")
    for token in reversed(MarkdownIt("commonmark").enable("table").parse(text)):
        if token.type == "inline" and token.map is not None:
            first, end = token.map
            rest = (line.strip() for line in lines[first + 1 : end])
            lines[first:end] = [" ".join([lines[first].rstrip(), *rest])]
    return "\n".join(lines)
