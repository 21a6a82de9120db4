"""Blocks of Markdown as rows of a terminal, and how many of them more text cannot change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from amplifier_app.render.ansi import cells, fold, paint
from amplifier_app.render.code import code_lines
from amplifier_app.render.inline import Span, StyledText, rows_of, styled, wrap
from amplifier_app.render.markdown_table import (
    HEAD_WITHIN,
    ROWS_MEASURED,
    may_be_head,
    read_table,
    table_rows,
)

# HTML would be dropped, images reduced to an icon, link definitions swallowed; a line of dashes
# would turn the paragraph above it, which is on the screen, into a heading.
_UNWANTED_RULES = ["html_block", "html_inline", "image", "reference", "lheading"]
_NARROWEST = 8
_FIRST_WORD = re.compile(r"\S+")
_CODE_INDENT = "  "

parser = MarkdownIt().enable(["strikethrough", "table"]).disable(_UNWANTED_RULES)
parser.block.ruler.at("table", read_table, {"alt": ["paragraph", "reference"]})


class Node(NamedTuple):
    """A block with the blocks inside it."""

    token: Token
    children: list[Node]

    @property
    def first_line(self) -> int:
        return self.token.map[0] if self.token.map else 0

    @property
    def last_line(self) -> int:
        """The number of the line after it."""
        return self.token.map[1] if self.token.map else 0

    def is_closed_fence(self, lines: Sequence[str]) -> bool:
        """Whether a fence has its closing line, and that line is complete."""
        if not self.first_line + 1 < self.last_line < len(lines):
            return False
        end = lines[self.last_line - 1].strip(" \t>")
        return end.startswith(self.token.markup) and not end.strip(self.token.markup[0])


class Rows(NamedTuple):
    """A rendered block.

    Attributes:
        lines: Its rows, with colour sequences.
        final: How many of them more text cannot change.
    """

    lines: list[str]
    final: int


def nodes_of(tokens: Sequence[Token]) -> list[Node]:
    """Return the top-level blocks."""
    roots: list[Node] = []
    path: list[list[Node]] = [roots]
    for token in tokens:
        if token.nesting < 0:
            path.pop()
            continue
        node = Node(token, [])
        path[-1].append(node)
        if token.nesting > 0:
            path.append(node.children)
    return roots


class BlockRenderer:
    """Renders the blocks of one text.

    Args:
        lines: The lines of the text; the last one is not complete yet.
        complete: Whether the text is complete, so that everything is final.
        number: The number of the first item of an ordered list that begins the text; None for
            its own.
        code_before: Lines of code before the text, if it begins in a fence.
        skip: Characters at the start of a first paragraph that are not shown.
    """

    def __init__(
        self,
        lines: Sequence[str],
        *,
        complete: bool = False,
        number: int | None = None,
        code_before: Sequence[str] = (),
        skip: int = 0,
    ) -> None:
        self._source = lines
        self._complete = complete
        self._number = number
        self._code_before = list(code_before)
        self._skip = skip
        self._kinds: dict[str, Callable[[Node, int], Rows]] = {
            "paragraph_open": self._paragraph,
            "heading_open": self._heading,
            "hr": self._rule,
            "fence": self._code,
            "code_block": self._code,
            "blockquote_open": self._quote,
            "bullet_list_open": self._list,
            "ordered_list_open": self._list,
            "table_open": self._table,
        }

    def block(self, node: Node, width: int) -> Rows:
        """Render one block."""
        render = self._kinds.get(node.token.type)
        return Rows([], 0) if render is None else render(node, max(width, _NARROWEST))

    def blank_before(self, node: Node) -> bool:
        """Whether there is a blank line before a block, in a list or a quote."""
        line = self._source[node.first_line - 1] if node.first_line else ""
        return not line.strip(" \t>")

    def _blocks(self, nodes: list[Node], width: int) -> Rows:
        return self._join_blocks((node, self.block(node, width)) for node in nodes)

    def _join_blocks(self, rendered: Iterable[tuple[Node, Rows]]) -> Rows:
        """Join rendered blocks, with the blank lines between them."""
        lines: list[str] = []
        final = 0
        for node, rows in rendered:
            gap = [""] if lines and self.blank_before(node) else []
            final = len(lines)  # all before are final, because a block follows them
            if rows.final:
                final += len(gap) + rows.final
            lines += gap + rows.lines
        return Rows(lines, final)

    def _is_closed(self, node: Node) -> bool:
        """Whether a paragraph or a table cannot grow: the line after it is complete."""
        return self._complete or node.last_line < len(self._source) - 1

    def _is_line_complete(self, node: Node) -> bool:
        """Whether the last line of a block is complete."""
        return self._complete or node.last_line < len(self._source)

    # Text

    def _paragraph(self, node: Node, width: int) -> Rows:
        text = _content(node, "")
        skip, self._skip = self._skip, 0
        if self._is_closed(node):
            lines = _wrapped(text, width, skip)
            return Rows(lines, len(lines))
        return self._open_text(node, text, width, skip)

    def _open_text(self, node: Node, text: StyledText, width: int, skip: int) -> Rows:
        """Render a paragraph that may go on."""
        lines = _wrapped(text, width, skip)
        kept = self._settled_part(node.children[0].token.content)
        if not kept:
            return Rows(lines, 0)
        known = styled(parser.parseInline(kept.rstrip())[0].children or [])
        shown = known.text
        ranges = wrap(shown[skip:], width)
        final = 0
        for begin, _ in ranges[1:]:
            # A row is final if the word that begins the next one cannot become shorter.
            word = _FIRST_WORD.match(shown, skip + begin)
            if word is None or word.end() > known.settled:
                break
            final += 1
        if final == len(ranges) - 1 and kept[-1] == "\n" and known.settled == len(shown):
            final += 1
        return Rows(lines, min(final, len(lines)))

    def _settled_part(self, source: str) -> str:
        """Return the part of an open paragraph that cannot be read in another way later."""
        if self._source[-1] == "":
            source += "\n"
        complete, _, partial = source.rpartition("\n")
        earlier, _, line = complete.rpartition("\n")
        if complete and may_be_head(line) and not partial.strip("|:- \t"):
            return f"{earlier}\n" if earlier else ""
        if line.endswith("\\") and not partial:  # a line break, if another line follows
            source = partial = source.rstrip("\n")
        # The last word can grow.
        end = max(partial.rfind(" "), partial.rfind("\t")) + 1
        if may_be_head(partial) or len(partial) < HEAD_WITHIN:
            end = 0
        return source[: len(source) - len(partial) + end]

    def _heading(self, node: Node, width: int) -> Rows:
        lines = _wrapped(_content(node, "bold"), width, 0)
        return Rows(lines, len(lines) if self._is_line_complete(node) else 0)

    def _rule(self, node: Node, width: int) -> Rows:
        return Rows([paint("─" * min(width, 80), "dim")], int(self._is_line_complete(node)))

    def _code(self, node: Node, width: int) -> Rows:
        code = node.token.content.removesuffix("\n").split("\n") if node.token.content else []
        before = self._code_before
        self._code_before = []
        language = (node.token.info.split() or [""])[0] if node.token.type == "fence" else ""
        spans = code_lines([*before, *code], language)[len(before) :]
        lines: list[str] = []
        starts: list[int] = []
        for line in spans:
            starts.append(len(lines))
            whole = "".join(paint(span.text, span.style) for span in _expand_tabs(line))
            lines += [_CODE_INDENT + row if row else "" for row in fold(whole, max(width - 2, 1))]
        if starts and not self._is_line_complete(node):
            return Rows(lines, starts[-1])
        return Rows(lines, len(lines))

    # Containers

    def _quote(self, node: Node, width: int) -> Rows:
        inner = self._blocks(node.children, width - 2)
        mark = paint("▌", "dim")
        return Rows([f"{mark} {line}".rstrip() for line in inner.lines], inner.final)

    def _list(self, node: Node, width: int) -> Rows:
        return self._join_blocks(self.items(node, width))

    def items(self, node: Node, width: int) -> list[tuple[Node, Rows]]:
        """Render each item of a list."""
        number = number_of(node) if self._number is None else self._number
        self._number = None
        found: list[tuple[Node, Rows]] = []
        for index, item in enumerate(node.children):
            mark = "•" if number is None else f"{number + index}."
            indent = " " * (len(mark) + 1)
            inner = self._blocks(item.children, width - len(indent))
            rows = [f"{indent}{line}".rstrip() for line in inner.lines] or [""]
            rows[0] = f"{mark} {rows[0][len(indent) :]}".rstrip()
            found.append((item, Rows(rows, len(rows) if self._complete else inner.final)))
        return found

    def _table(self, node: Node, width: int) -> Rows:
        parts = [row for part in node.children for row in part.children]
        cells_of = [
            [
                _content(cell, "bold" if cell.token.type == "th_open" else "")
                for cell in row.children
            ]
            for row in parts
        ]
        styles = [str(cell.token.attrs.get("style", "")) for cell in parts[0].children]
        lines, starts = table_rows(cells_of, [one.partition(":")[2] for one in styles], width)
        if self._is_closed(node):
            return Rows(lines, len(lines))
        complete = len(parts) - (self._source[-1] != "")
        if complete <= ROWS_MEASURED:
            return Rows(lines, 0)
        return Rows(lines, starts[complete] if complete < len(starts) else len(lines))


def _content(node: Node, style: str) -> StyledText:
    children = node.children[0].token.children if node.children else None
    return styled(children or [], style)


def _wrapped(text: StyledText, width: int, skip: int) -> list[str]:
    spans: list[Span] = []
    for span in text.spans:
        cut = min(skip, len(span.text))
        skip -= cut
        spans.append(Span(span.text[cut:], span.style))
    whole = "".join(span.text for span in spans)
    return rows_of(spans, wrap(whole, width))


def _expand_tabs(line: Sequence[Span]) -> list[Span]:
    """Replace tabs, which would be wider than they are counted."""
    column = 0
    expanded: list[Span] = []
    for text, style in line:
        while "\t" in text:
            before, text = text.split("\t", 1)
            column += cells(before)
            padding = " " * (4 - column % 4)
            column += len(padding)
            expanded.append(Span(before + padding, style))
        column += cells(text)
        expanded.append(Span(text, style))
    return expanded


def is_list(node: Node) -> bool:
    """Whether a block is a list."""
    return node.token.type in ("bullet_list_open", "ordered_list_open")


def number_of(node: Node) -> int | None:
    """Return the number of the first item of a list; None if it is not ordered."""
    if node.token.type != "ordered_list_open":
        return None
    return int(node.token.attrs.get("start", 1))
