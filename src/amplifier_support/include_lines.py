"""The lines of a text that include files: `@path` and nothing else.

`@@` at the start of such a line means one `@`, and lines of code between ``` or ~~~ mean
only themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import lazy_pattern

_INCLUDE = lazy_pattern(r"[ \t]*@(@*)([^\s@]\S*)[ \t]*")
_FENCE = lazy_pattern(r" {0,3}(`{3,}|~{3,})")


class IncludeLine(NamedTuple):
    """A line of a text.

    Attributes:
        text: The line, with `@@` unescaped.
        target: What it includes; None for any other line.
        is_literal: Whether it is code or escaped, so that nothing in it has a meaning.
    """

    text: str
    target: str | None
    is_literal: bool


def include_lines(text: str) -> Iterator[IncludeLine]:
    """The lines of `text`."""
    for line, is_code in _lines(text):
        match = None if is_code else _INCLUDE.fullmatch(line)
        if match is None:
            yield IncludeLine(line, None, is_code)
        elif match[1]:
            yield IncludeLine(line.replace("@@", "@", 1), None, True)
        else:
            yield IncludeLine(line, match[2], False)


def escape_includes(text: str) -> str:
    """`text` with its lines escaped so that none of them includes a file."""
    return "\n".join(
        line.replace("@", "@@", 1) if _INCLUDE.fullmatch(line) and not is_code else line
        for line, is_code in _lines(text)
    )


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines, and whether each is code between fences."""
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        else:
            fence = match[1] if match else ""
            yield line, bool(fence)
