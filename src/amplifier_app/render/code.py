"""Source code in colours that can be read on light and on dark terminals."""

from __future__ import annotations

from functools import cache
from typing import Any

from amplifier_app.render.inline import Span

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
    found: list[list[Span]] = [[]]
    for kind, text in lexer.get_tokens("\n".join(lines)):
        first, *rest = text.split("\n")
        _add(found[-1], first, _style(kind))
        for line in rest:
            found.append([])
            _add(found[-1], line, _style(kind))
    # A lexer must keep the text; if one does not, the text counts, not its colours.
    return [
        spans if "".join(span.text for span in spans) == line else [Span(line)]
        for line, spans in zip(lines, [*found, *([[]] * len(lines))], strict=False)
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
    for length in range(len(names), 0, -1):
        style = _STYLES.get(".".join(names[:length]))
        if style is not None:
            return style
    return ""
