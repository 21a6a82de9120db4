"""A saved conversation, drawn for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.render.ansi import clip, paint, wrapped
from amplifier_app.render.markdown import markdown_lines
from amplifier_app.runtime.export.parts import Heading, Part


def as_ansi(heading: Heading, parts: Sequence[Part], width: int) -> str:
    """The conversation with colours, in lines of at most `width` cells."""
    lines = [paint(clip(for_terminal(heading.title), width), "bold")]
    facts = " · ".join(heading.facts)
    for line in [*([facts] if facts else []), *heading.lines]:
        lines += [paint(one, "dim") for one in wrapped(for_terminal(line), width)]
    before = ""
    for part in parts:
        text = for_terminal(part.text).strip("\n")
        if not text.strip():
            continue
        if part.kind != "call" or before != "call":
            lines.append("")
        before = part.kind
        if part.kind == "answer":
            lines += markdown_lines(text, width)
        elif part.kind == "call":
            number, _, rest = text.partition(" ")
            lines.append(clip(f"{paint(f'{number:>4}', 'dim')} {rest}", width))
        elif part.kind == "prompt":
            styled = [paint(one, "bold") for one in _wrapped_lines(text, width - 2)]
            lines += [f"{paint('›', 'bold')} {styled[0]}", *(f"  {one}" for one in styled[1:])]
        else:
            style = "dim italic" if part.kind == "thinking" else "dim"
            lines += [paint(one, style) for one in _wrapped_lines(text, width)]
    return "\n".join([*lines, ""])


def _wrapped_lines(text: str, width: int) -> list[str]:
    return [row for line in text.split("\n") for row in wrapped(line, width)]
