"""A saved conversation, drawn for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.render.ansi import Lines, clip, message_lines, paint, wrapped, wrapped_text
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
        return markdown_lines(text, width) if markdown else wrapped_text(text, width)
    if kind == "call":
        number, _, rest = text.partition(" ")
        return [clip(f"{paint(f'{number:>4}', 'dim')} {rest}", width)]
    if kind == "prompt":
        return message_lines(wrapped_text(text, width - 2), width)
    style = "dim italic" if kind == "thinking" else "dim"
    return [paint(wrapped_line, style) for wrapped_line in wrapped_text(text, width)]


def conversation_view(parts: Sequence[Part]) -> Lines:
    """Return parts of a conversation as a reply; in plain output, answers are shown as they were written."""
    return Lines(lambda width, styled: part_lines(parts, width, markdown=styled))


def dimmed_parts(parts: Sequence[Part], max_lines: int) -> Lines:
    """Return the first lines of each part of a conversation, all of them dim."""
    reset, dim = "\x1b[0m", "\x1b[2m"

    def draw(width: int, styled: bool) -> Iterator[str]:
        for line in part_lines(parts, width, markdown=styled, max_lines=max_lines):
            yield f"{dim}{line.replace(reset, reset + dim)}{reset}" if line else line

    return Lines(draw)
