"""Text with styles: from inline Markdown, wrapped to a width."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markdown_it.token import Token

from amplifier_app.render.ansi import cell_width, cells, paint

_OPENING = {
    "em_open": "italic",
    "strong_open": "bold",
    "s_open": "strike",
    "link_open": "underline",
}
_CLOSING = {name.replace("open", "close") for name in _OPENING}
_CODE, _ADDRESS = "cyan", "dim"

# What text can begin a construct that later text completes.
_LITERAL = re.compile(r"`|\[|\*+|_+|~~+")
_WORD = re.compile(r"\S+")


class Span(NamedTuple):
    """A piece of text in one style, named as in `paint`."""

    text: str
    style: str = ""


class StyledText(NamedTuple):
    """Text with styles.

    Attributes:
        spans: The pieces.
        settled: Length of the text before the first character that more text could turn into
            markup, such as an unpaired `*`.
    """

    spans: list[Span]
    settled: int

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


def styled(children: Iterable[Token], style: str = "") -> StyledText:
    """Return inline Markdown as text; line breaks are kept, and the address of a link is shown."""
    spans: list[Span] = []
    styles = [style]
    addresses: list[tuple[str, int]] = []
    length, settled = 0, -1
    for token in children:
        span = None
        if token.type in _OPENING:
            if token.type == "link_open":
                addresses.append((str(token.attrs.get("href", "")), len(spans)))
            styles.append(f"{styles[-1]} {_OPENING[token.type]}")
        elif token.type in _CLOSING:
            styles.pop()
            if token.type == "link_close":
                address, start = addresses.pop()
                if "".join(span.text for span in spans[start:]) != address:
                    span = Span(f" ({address})", _ADDRESS)
        elif token.type in ("softbreak", "hardbreak"):
            span = Span("\n")
        elif token.type == "code_inline":
            span = Span(token.content, f"{styles[-1]} {_CODE}")
        elif token.content:
            span = Span(token.content, styles[-1])
            literal = _open_literal(token.content)
            if settled < 0 and literal is not None:
                settled = length + literal
        if span is not None:
            spans.append(span)
            length += len(span.text)
    return StyledText(spans, length if settled < 0 else settled)


def _open_literal(text: str) -> int | None:
    for match in _LITERAL.finditer(text):
        before, after = text[: match.start()][-1:], text[match.end() :][:1]
        if match[0] == "[":
            # `[1]` is text, unless an address follows.
            closing = text.find("]", match.end())
            if closing >= 0 and "[" not in text[match.end() : closing]:
                following = text[closing + 1 : closing + 2]
                if following and following != "(":
                    continue
        elif match[0] != "`" and (after.isspace() or (match[0][0] == "_" and before.isalnum())):
            continue
        return match.start()
    return None


def wrap(text: str, width: int) -> list[tuple[int, int]]:
    """Return the rows of a text as positions in it, each of at most `width` cells.

    A word goes to the next row if it does not fit; one wider than a row is broken, and wide
    characters (Chinese, emoji) may be separated. More text changes only the last row.
    """
    rows: list[tuple[int, int]] = []
    start = 0
    for line in text.split("\n"):
        wrapped = wrapped_ascii(line, width) if line.isascii() else wrapped_line(line, width)
        rows += [(start + begin, start + end) for begin, end in wrapped]
        start += len(line) + 1
    return rows


def wrapped_ascii(line: str, width: int) -> list[tuple[int, int]]:
    """Return the same as `wrapped_line` for a line of ASCII characters, faster."""
    rows: list[tuple[int, int]] = []
    begin, length = 0, len(line.rstrip())
    while length - begin > width:
        cut = line.rfind(" ", begin, begin + width + 1)
        kept = len(line[begin:cut].rstrip()) if cut > begin else 0
        if kept:
            rows.append((begin, begin + kept))
            begin = cut + 1
            while line[begin] == " ":
                begin += 1
        else:  # a word that is wider than a row
            rows.append((begin, begin + width))
            begin += width
    return [*rows, (begin, length)]


def wrapped_line(line: str, width: int) -> list[tuple[int, int]]:
    """Return the rows of one line, see `wrap`."""
    rows: list[tuple[int, int]] = []
    begin, end, used = 0, 0, 0  # of the current row; `used` counts its cells
    for start, stop in _words(line):
        word = cells(line[start:stop])
        gap = start - end
        if used and used + gap + word > width:
            rows.append((begin, end))
            begin, used, gap = start, 0, 0
        if used + gap + word <= width:
            used += gap + word
        else:  # too wide for a row, with the indentation before it
            for position in range(start - gap, stop):
                wide = cell_width(line[position])
                if used + wide > width and used:
                    rows.append((begin, position))
                    begin, used = position, 0
                used += wide
        end = stop
    return [*rows, (begin, end)]


def _words(line: str) -> Iterable[tuple[int, int]]:
    """Positions of the words; each wide character is a word of its own."""
    for match in _WORD.finditer(line):
        if match[0].isascii():
            yield match.span()
            continue
        start = match.start()
        for position in range(match.start(), match.end()):
            if cell_width(line[position]) > 1:
                if start < position:
                    yield start, position
                yield position, position + 1
                start = position + 1
        if start < match.end():
            yield start, match.end()


def rows_of(spans: Sequence[Span], rows: Sequence[tuple[int, int]]) -> list[str]:
    """Return rows of a text as lines with colour sequences."""
    lines: list[str] = []
    index, position = 0, 0  # the span at the start of the row, and its position in the text
    for begin, end in rows:
        while index < len(spans) and position + len(spans[index].text) <= begin:
            position += len(spans[index].text)
            index += 1
        pieces: list[str] = []
        at, offset = index, position
        while at < len(spans) and offset < end:
            text, style = spans[at]
            pieces.append(paint(text[max(begin - offset, 0) : end - offset], style))
            offset += len(text)
            at += 1
        lines.append("".join(pieces))
    return lines
