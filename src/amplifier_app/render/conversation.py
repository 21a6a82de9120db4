"""A saved conversation, drawn for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.render.ansi import clip, message_lines, paint, wrapped
from amplifier_app.render.markdown import markdown_lines
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import Heading, Part


def as_ansi(heading: Heading, parts: Iterable[Part], width: int) -> Iterator[str]:
    """The conversation with colours, in lines of at most `width` cells, in pieces."""
    lines = [paint(clip(for_terminal(heading.title), width), "bold")]
    facts = " · ".join(heading.facts)
    for line in [*([facts] if facts else []), *heading.lines]:
        lines += [paint(row, "dim") for row in wrapped(for_terminal(line), width)]
    yield "\n".join([*lines, "", ""])
    for line in _part_lines(parts, width):
        yield f"{line}\n"


def part_lines(
    parts: Iterable[Part], width: int, *, markdown: bool = True, max_lines: int | None = None
) -> list[str]:
    """Parts of a conversation, with an empty line between them, in lines of at most `width` cells.

    Args:
        parts: The parts.
        width: The width of the screen.
        markdown: Whether to render answers; otherwise they are shown as they were written.
        max_lines: Lines of each part that are shown; the others are counted.
    """
    return list(_part_lines(parts, width, markdown=markdown, max_lines=max_lines))


def _part_lines(
    parts: Iterable[Part], width: int, *, markdown: bool = True, max_lines: int | None = None
) -> Iterator[str]:
    before = ""
    for part in parts:
        text = for_terminal(part.text).strip("\n")
        if not text.strip():
            continue
        if before and not part.kind == before == "call":
            yield ""
        before = part.kind
        rows = _part(part.kind, text, width, markdown=markdown)
        yield from rows[:max_lines]
        more = len(rows[max_lines:]) if max_lines is not None else 0
        if more:
            yield f"… {describe.count(more, 'more line')}"


def _part(kind: str, text: str, width: int, *, markdown: bool) -> list[str]:
    if kind == "answer":
        return markdown_lines(text, width) if markdown else _wrapped_lines(text, width)
    if kind == "call":
        number, _, rest = text.partition(" ")
        return [clip(f"{paint(f'{number:>4}', 'dim')} {rest}", width)]
    if kind == "prompt":
        return message_lines(_wrapped_lines(text, width - 2), width)
    style = "dim italic" if kind == "thinking" else "dim"
    return [paint(wrapped_line, style) for wrapped_line in _wrapped_lines(text, width)]


class ConversationView:
    """Parts of a conversation as a reply to a command; see `part_lines`.

    Args:
        parts: The parts.
        style: The style of all lines.
        max_lines: Lines of each part that are shown.
    """

    def __init__(
        self, parts: Sequence[Part], *, style: str = "", max_lines: int | None = None
    ) -> None:
        self._parts = parts
        self._style = style
        self._most = max_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render Markdown, but not in plain output, where answers are not rendered either."""
        width, markdown = options.max_width, console.is_terminal
        for line in part_lines(self._parts, width, markdown=markdown, max_lines=self._most):
            yield Text.from_ansi(line, style=self._style, no_wrap=True, overflow="ignore")


def _wrapped_lines(text: str, width: int) -> list[str]:
    return [row for line in text.split("\n") for row in wrapped(line, width)]
