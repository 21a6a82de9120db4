"""Markdown for a terminal, printed line by line while it arrives.

All text is kept: HTML source, the address of every link, line breaks. A line is given out once, as soon
as more text cannot change it, so the result does not depend on how the text was cut. The exception is
the colours of code, for which the lines before are known, but not those after.

Import this only for a terminal: it loads a Markdown parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from amplifier_app.render.inline import styled, wrap
from amplifier_app.render.markdown_blocks import (
    BlockRenderer,
    Node,
    is_list,
    nodes_of,
    number_of,
    parser,
)
from amplifier_app.render.markdown_table import HEAD_WITHIN

_CODE_CONTEXT = 100
"""Lines of code that are read again for the colours of those that follow."""

_LONG_PARAGRAPH = 2000
"""Characters from which a paragraph is cut once lines of it are given out."""

_MARKS = re.compile(r"\A\s*(?:(?:>|[-*+]|\d{1,9}[.)])\s+)*")
_UNDECIDED = re.compile(r"[-*+_=#`~|:>.)\d\s]*|(?:```|~~~).*")
"""What the beginning of a line can be that more text can turn into another kind of block."""

_IN_PARAGRAPH = "x" * (HEAD_WITHIN + 1) + " "
"""Replaces the text before a cut, so that the rest is parsed as part of the paragraph."""


def markdown_lines(text: str, width: int) -> list[str]:
    """Return Markdown as lines of at most `width` cells."""
    stream = MarkdownStream(lambda: width)
    stream.feed(text)
    return stream.finish()


class MarkdownStream:
    """Turns Markdown that arrives in pieces into lines.

    Args:
        width: Returns the width in cells. A block keeps the width of its first line.

    Attributes:
        rest: The lines that may still change, as of the last `take`.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._measure = width
        self._reset()

    def _reset(self) -> None:
        self._text = ""  # from the first block or list item that is not given out completely
        self._is_new = False
        self._gap = False  # whether an empty line comes before the next block
        self._begin("")
        self.rest: list[str] = []

    def _begin(self, text: str, *, gap: bool = False, number: int | None = None) -> None:
        """Continue with the rest of the text, which begins with a block or an item of a list."""
        self._text = text
        self._gap = gap
        self._number = number
        self._given = 0  # lines of the block that are given out
        self._width = 0  # set with its first line
        self._code: list[str] = []  # lines of a fence before the text
        self._skip = 0  # characters of a paragraph that replace the text before

    def feed(self, text: str) -> None:
        """Add text."""
        self._text += text
        self._is_new = self._is_new or bool(text)

    @property
    def is_empty(self) -> bool:
        """Whether no text has come since the last `finish`."""
        return not self._text.strip()

    def take(self) -> list[str]:
        """Return the lines that became final since the last call."""
        if not self._is_new:
            return []
        self._is_new = False
        return self._render(complete=False)

    def finish(self) -> list[str]:
        """Return the remaining lines and forget the text."""
        lines = self._render(complete=True)
        self._reset()
        return lines

    def _render(self, *, complete: bool) -> list[str]:
        out: list[str] = []
        undecided = ""
        if not complete:
            before, newline, line = self._text.rpartition("\n")
            if _UNDECIDED.fullmatch(_MARKS.sub("", line)):
                self._text, undecided = before + newline, line
        lines = self._text.split("\n")
        nodes = nodes_of(parser.parse(self._text, {"complete": complete}))
        renderer = BlockRenderer(
            lines,
            complete=complete,
            number=self._number,
            code_before=self._code,
            skip=self._skip,
        )
        self.rest = []
        for index, node in enumerate(nodes):
            if index:
                self._begin("\n".join(lines[node.first_line :]), gap=True)
            width = self._width or self._measure()
            is_last = index == len(nodes) - 1
            if is_list(node):
                self._give_items(out, node, renderer, lines, width, is_last=is_last)
                continue
            rows = renderer.block(node, width)
            final = rows.final if is_last else len(rows.lines)
            self._give(out, rows.lines, final, width)
            if is_last and final:
                self._cut(node, lines, width)
        self._text += undecided
        if undecided.strip():
            self.rest.append(undecided)
        return out

    def _give_items(
        self,
        out: list[str],
        node: Node,
        renderer: BlockRenderer,
        lines: list[str],
        width: int,
        *,
        is_last: bool,
    ) -> None:
        number = number_of(node) if self._number is None else self._number
        for index, (item, rows) in enumerate(renderer.items(node, width)):
            if index:
                self._begin(
                    "\n".join(lines[item.first_line :]),
                    gap=renderer.blank_before(item),
                    number=None if number is None else number + index,
                )
            closed = not is_last or item is not node.children[-1]
            self._give(out, rows.lines, len(rows.lines) if closed else rows.final, width)

    def _give(self, out: list[str], rows: list[str], final: int, width: int) -> None:
        gap = [""] if self._gap and not self._given else []
        if final > self._given:
            out += [*gap, *rows[self._given : final]]
            self._given, self._width, gap = final, width, []
        self.rest = [*gap, *rows[self._given :]] if len(rows) > self._given else []

    def _cut(self, node: Node, lines: list[str], width: int) -> None:
        """Remove lines that are given out from the text, so that they are not read again."""
        if node.token.type == "fence" and not node.is_closed_fence(lines):
            opening, *code = lines[node.first_line : -1]
            if code:
                self._code = [*self._code, *code][-_CODE_CONTEXT:]
                self._text = f"{opening}\n{lines[-1]}"
                self._given, self._gap = 0, False
        elif node.token.type == "paragraph_open" and len(self._text) > _LONG_PARAGRAPH:
            source = node.children[0].token.content
            text = styled(node.children[0].token.children or []).text
            # Up to here the text is without markup, so positions in it are those in the source.
            pairs = enumerate(zip(text, source, strict=False))
            same = next((at for at, (a, b) in pairs if a != b), min(len(text), len(source)))
            rows = wrap(text[self._skip :], width)
            for count in range(min(self._given, len(rows) - 1), 0, -1):
                start = self._skip + rows[count][0]
                if start <= same and text[start - 1].isspace():
                    after = self._text[len(self._text.rstrip()) :]
                    self._text = f"{_IN_PARAGRAPH}{source[start:]}{after}"
                    self._given -= count
                    self._skip, self._gap = len(_IN_PARAGRAPH), False
                    return
