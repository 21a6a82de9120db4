"""Text with styles: from inline Markdown, wrapped to a width."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from markdown_it.token import Token

from amplifier_app.render.ansi import line_rows, paint
from amplifier_support.named_tuple import NamedTuple

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
    """Return the rows of a text as positions in it, see `line_rows`.

    More text changes only the last row.
    """
    rows: list[tuple[int, int]] = []
    start = 0
    for line in text.split("\n"):
        rows += [(start + begin, start + end) for begin, end in line_rows(line, width)]
        start += len(line) + 1
    return rows


def build_rows(spans: Sequence[Span], rows: Sequence[tuple[int, int]]) -> list[str]:
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


_STYLES = {
    "Keyword": "magenta",
    "Operator.Word": "magenta",
    "String": "green",
    "Number": "cyan",
    "Literal": "cyan",
    "Comment": "dim italic",
    "Name.Function": "bold",
    "Name.Class": "bold",
    "Name.Decorator": "magenta",
    "Name.Tag": "magenta",
    "Name.Builtin": "cyan",
    "Generic.Deleted": "red",
    "Generic.Inserted": "green",
    "Generic.Heading": "bold",
    "Generic.Subheading": "cyan",
    "Generic.Prompt": "bold",
}


def code_lines(lines: list[str], language: str) -> list[list[Span]]:
    """Return each line of source code as spans; plain if the language is not known.

    Args:
        lines: The lines.
        language: The name of the language, as after the opening of a fence.
    """
    lexer = _lexer(language)
    if lexer is None:
        return [[Span(line)] for line in lines]
    rows: list[list[Span]] = [[]]
    for kind, text in lexer.get_tokens("\n".join(lines)):
        first, *rest = text.split("\n")
        _add(rows[-1], first, _style(kind))
        for line in rest:
            rows.append([])
            _add(rows[-1], line, _style(kind))
    # A lexer must keep the text; if one does not, the text counts, not its colours.
    return [
        spans if "".join(span.text for span in spans) == line else [Span(line)]
        for line, spans in zip(lines, [*rows, *([[]] * len(lines))], strict=False)
    ]


def _add(spans: list[Span], text: str, style: str) -> None:
    if spans and (spans[-1].style == style or text.isspace()):
        spans[-1] = Span(spans[-1].text + text, spans[-1].style)
    elif text:
        spans.append(Span(text, style))


@cache
def _lexer(language: str) -> Any:
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@cache
def _style(kind: Any) -> str:
    names = str(kind).removeprefix("Token.").removeprefix("Literal.").split(".")
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((_STYLES[prefix] for prefix in prefixes if prefix in _STYLES), "")
