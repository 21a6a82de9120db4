"""`amplifier docs`: the bundled documentation, pages next to the code they describe."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import typer

from amplifier_app import __version__
from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.own_packages import MODULE_PACKAGES
from amplifier_app.base.pager import show_paged
from amplifier_app.base.paths import bundled_examples_dir
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.group import amplifier_command
from amplifier_app.commands.help import plain_record, walk_commands
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean


def docs(
    topic: Annotated[
        str | None, argument("TOPIC", "Page to show. [default: list all pages]")
    ] = None,
    search: Annotated[
        str | None, option("-s, --search TEXT", "List the lines that contain TEXT.")
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
        sys.stdout.write(_manual())
        return
    chosen = pages() if topic is None else [_find_page(topic)]
    matches = [] if search is None else _find_lines(chosen, search)
    if output == "json":
        texts = [{"topic": page.topic, "title": page.title, "text": page.text} for page in chosen]
        print(json_text(texts if search is None else [match._asdict() for match in matches]))
    elif search is not None:
        for match in matches:
            print(f"{match.topic}:{match.line}: {match.text}")
    elif topic is None:
        rows = [(page.topic, page.about) for page in chosen]
        print_table((Column("TOPIC"), Column("ABOUT", "wrap")), rows)
        print("\nShow one with: amplifier docs TOPIC")
    else:
        _show(chosen[0])
    if search is not None and not matches:
        raise typer.Exit(1)


class _Match(NamedTuple):
    """A line of a page."""

    topic: str
    line: int
    text: str


def _find_lines(chosen: list[Page], text: str) -> list[_Match]:
    needle = text.casefold()
    return [
        _Match(page.topic, number, line.strip())
        for page in chosen
        for number, line in enumerate(page.text.splitlines(), 1)
        if needle in line.casefold()
    ]


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


_PAGES = {
    "batch": "amplifier_batch/README.md",
    "chat": "amplifier_app/chat/README.md",
    "completion": "amplifier_app/commands/completion/README.md",
    "editors": "amplifier_serve/README.md",
    "harbor": "amplifier_serve/harbor.md",
    "library": "amplifier_app/commands/docs/library.md",
    "output": "amplifier_app/render/README.md",
    "performance": "amplifier_app/commands/docs/performance.md",
    "plans": "amplifier_app/plan/README.md",
    "promises": "amplifier_app/commands/docs/promises.md",
    "providers": "amplifier_app/commands/provider/README.md",
    "recipes": "amplifier_batch/recipes.md",
    "sandbox": "amplifier_support/sandbox/README.md",
    "scripts": "amplifier_app/commands/run/README.md",
    "sessions": "amplifier_app/sessions/README.md",
    "sources": "amplifier_app/sources/README.md",
    "testing": "amplifier_kit/plan_tests/README.md",
    "trust": "amplifier_app/trust/README.md",
    "validation": "amplifier_kit/validation/README.md",
}
"""Topic → its package and the page there."""

_EXAMPLES = re.compile(r"(?<=\]\()(\.\./)+examples(?=/)")
_MARKUP = r"\[([^\]]*)\]\([^)]*\)|`"
"""A link, whose text is kept, or the marks of code."""


class Page(NamedTuple):
    """A page.

    Attributes:
        topic: Its name on the command line: `plans`, `tool-bash`, `contracts/tool`.
        text: Its Markdown.
    """

    topic: str
    text: str

    @property
    def title(self) -> str:
        """Its heading."""
        return self.text.partition("\n")[0].lstrip("# ").replace("`", "")

    @property
    def about(self) -> str:
        """Its heading, or how the page begins if the heading is the topic."""
        if self.title != self.topic:
            return self.title
        begin = " ".join(self.text.split("\n\n")[1].split())
        return re.split(r"[.:;](?:\s|$)", re.sub(_MARKUP, r"\1", begin), maxsplit=1)[0]


def pages() -> list[Page]:
    """All pages: of the program, the module contracts and the bundled modules."""
    return [*_of_the_app(), *_contracts(), *_of_modules()]


def _find_page(topic: str) -> Page:
    """The page of `topic`.

    Raises:
        UsageError: The topic is unknown.
    """
    known = {page.topic: page for page in pages()}
    name = topic.strip().lower().removesuffix(".md")
    if name in known:
        return known[name]
    hint = did_you_mean(name, set(known)) or "List all pages with: amplifier docs"
    words = name.replace("-", " ")
    if words and any(words in page.text.casefold() for page in known.values()):
        hint += f"\nSearch them with: amplifier docs --search {shlex.quote(words)}"
    raise UsageError(f"unknown page {topic!r}", hint=hint)


def _of_the_app() -> Iterator[Page]:
    for topic, place in _PAGES.items():
        package, _, page = place.partition("/")
        text = _read(files(package) / page)
        # The links are those of the repository; the wheel has the examples in another place.
        yield Page(topic, _EXAMPLES.sub(lambda _: str(bundled_examples_dir()), text))


def _contracts() -> Iterator[Page]:
    folder = files("amplifier_core") / "contracts"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        name = file.name.removesuffix(".md")
        if name != file.name:
            yield Page("contracts" if name == "README" else f"contracts/{name}", _read(file))


def _of_modules() -> Iterator[Page]:
    yield Page("loops", _read(files("amplifier_modules") / "_shared" / "loop" / "README.md"))
    folders = [folder for package in MODULE_PACKAGES for folder in files(package).iterdir()]
    for folder in sorted(folders, key=lambda file: file.name):
        page = folder / "README.md"
        if not folder.name.startswith("_") and page.is_file():
            yield Page(folder.name.replace("_", "-"), _read(page))


def _read(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


def _manual() -> str:
    """Return the manual page in the format of man(7)."""
    root = amplifier_command()
    context = root.context_class(root, info_name="amplifier")
    lines = [
        f'.TH AMPLIFIER 1 "" "amplifier {__version__}" "User Commands"',
        ".SH NAME",
        r"amplifier \- run AI agents defined in YAML plans",
        ".SH SYNOPSIS",
        r".B amplifier",
        r"[\fICOMMAND\fR] [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH DESCRIPTION",
        *_text(root.help),
        ".SH COMMANDS",
    ]
    for name, command in walk_commands(root, context):
        lines += [f".SS amplifier {_escape(name)}", *_text(command.help)]
        if hasattr(command, "list_commands"):
            continue
        below = command.context_class(command, info_name=name)
        records = (parameter.get_help_record(below) for parameter in command.get_params(below))
        for names, about in (plain_record(*record) for record in records if record is not None):
            lines += [".TP", rf"\fB{_escape(names)}\fR", _escape(about) or r"\ "]
    lines.append(".SH EXIT STATUS")
    for ending in Ending:
        lines += [".TP", rf"\fB{ending.exit_code}\fR", ending.value.replace("_", " ")]
    lines += [
        ".SH SEE ALSO",
        r"The pages of \fBamplifier docs\fR, for example \fBamplifier docs output\fR.",
    ]
    return "\n".join(lines) + "\n"


def _text(text: Any) -> list[str]:
    """A help text, with its examples as they are."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", str(text or "").strip()):
        is_example = paragraph.startswith("\b")
        body = paragraph.removeprefix("\b\n")
        words = [_escape(line.rstrip()) for line in body.split("\n") if line.strip()]
        lines += [".PP", *([".nf", *words, ".fi"] if is_example else words)]
    return lines[1:]


def _escape(text: str) -> str:
    text = " ".join(text.split()) if not text.startswith(" ") else text
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
