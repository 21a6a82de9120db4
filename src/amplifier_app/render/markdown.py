"""Markdown for a terminal, printed line by line while it arrives.

All text is kept: HTML source, the address of every link, line breaks. A line is given out once, as soon
as more text cannot change it, so the result does not depend on how the text was cut. The exception is
the colours of code, for which the lines before are known, but not those after.

Import this only for a terminal: it loads a Markdown parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import table as standard_table
from markdown_it.token import Token

from amplifier_app.render.ansi import cells, fold, paint
from amplifier_app.render.inline import Span, StyledText, build_rows, code_lines, styled, wrap
from amplifier_support.named_tuple import NamedTuple

ROWS_MEASURED = 11
"""Rows, with the head, that decide the widths of the columns. Later rows are wrapped to them, so that
a long table can be printed while it is written."""

HEAD_WITHIN = 32
"""Characters of a line among which the head of a table has its first `|`. Other lines are text at once,
so that they can be printed before the next line is known."""

_GAP = " │ "
_NARROWEST_COLUMN = 6
"""Cells of a column below which the table is printed as one line per value."""


def _may_be_head(line: str) -> bool:
    """Return True if a line can be the head of a table."""
    return "|" in line.lstrip()[:HEAD_WITHIN]


def read_table(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """The parser's rule for tables, for those whose head has an early `|`.

    The line below the head must be complete, too, unless no more text comes.
    """
    begin = state.bMarks[startLine] + state.tShift[startLine]
    line = state.src[begin : state.eMarks[startLine]]
    is_read = state.env.get("complete") or state.src.find("\n", state.eMarks[startLine] + 1) >= 0
    return _may_be_head(line) and is_read and standard_table(state, startLine, endLine, silent)


def _table_rows(
    table: Sequence[Sequence[StyledText]], aligned: Sequence[str], width: int
) -> tuple[list[str], list[int]]:
    """Return the lines of a table, and the line each of its rows begins at.

    Args:
        table: The cells; the first row is the head.
        aligned: For each column, `left`, `right` or `center`.
        width: Cells of a line.
    """
    natural = [
        max(max(cells(row[n].text), 1) for row in table[:ROWS_MEASURED])
        for n in range(len(aligned))
    ]
    room = width - len(_GAP) * (len(aligned) - 1)
    widths = _fit_widths(natural, room)
    if widths is not None and len(table) > ROWS_MEASURED:
        # Some of the free space is for longer values further down.
        spare = max(0, room - sum(widths)) // len(widths)
        widths = [width + min(spare, width // 4 + 2) for width in widths]
    lines: list[str] = []
    starts: list[int] = []
    if widths is None:
        for index, row in enumerate(table[1:]):
            starts.append(len(lines) if index else 0)
            lines += _record(table[0], row, width, first=not index)
        return lines, [0, *starts]
    for index, row in enumerate(table):
        starts.append(len(lines))
        lines += _row(row, aligned, widths)
        if index == 0:
            lines.append(paint("─┼─".join("─" * one for one in widths), "dim"))
    return lines, starts


def _fit_widths(natural: list[int], room: int) -> list[int] | None:
    """Return widths that fit; None if the columns would be too narrow."""
    widths = list(natural)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda n: widths[n])
        if widths[widest] <= _NARROWEST_COLUMN:
            return None
        widths[widest] -= 1
    return widths


def _row(row: Sequence[StyledText], aligned: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [_lines(cell.spans, width) for cell, width in zip(row, widths, strict=True)]
    lines: list[str] = []
    for n in range(max(map(len, columns))):
        parts: list[str] = []
        for column, width, side in zip(columns, widths, aligned, strict=True):
            text = column[n] if n < len(column) else ""
            room = width - cells(text)
            before = {"right": room, "center": room // 2}.get(side, 0)
            parts.append(" " * before + text + " " * (room - before))
        lines.append(paint(_GAP, "dim").join(parts).rstrip())
    return lines


def _record(
    head: Sequence[StyledText], row: Sequence[StyledText], width: int, *, first: bool
) -> list[str]:
    """Return a row as lines `heading: value`, with an empty line before it unless it is the first."""
    lines = [] if first else [""]
    for name, value in zip(head, row, strict=True):
        label = [*name.spans, Span(": ")] if name.text else []
        lines += _lines([*label, *value.spans], width)
    return lines


def _lines(spans: Sequence[Span], width: int) -> list[str]:
    text = "".join(span.text for span in spans)
    return build_rows(spans, wrap(text, width))


# HTML would be dropped, images reduced to an icon, link definitions swallowed; a line of dashes
# would turn the paragraph above it, which is on the screen, into a heading.
_UNWANTED_RULES = ["html_block", "html_inline", "image", "reference", "lheading"]
_NARROWEST = 8
_FIRST_WORD = re.compile(r"\S+")
_CODE_INDENT = "  "
_TASK = re.compile(r"\[([ xX])\] (?=\S)")
"""The beginning of an item of a task list."""

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
        """Return True if a fence has its closing line, and that line is complete."""
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


def _build_nodes(tokens: Sequence[Token]) -> list[Node]:
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
        """Return True if there is a blank line before a block, in a list or a quote."""
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
        """Return True if a paragraph or a table cannot grow: the line after it is complete."""
        return self._complete or node.last_line < len(self._source) - 1

    def _is_line_complete(self, node: Node) -> bool:
        """Return True if the last line of a block is complete."""
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
        content = known.text
        ranges = wrap(content[skip:], width)
        final = 0
        for begin, _ in ranges[1:]:
            # A row is final if the word that begins the next one cannot become shorter.
            word = _FIRST_WORD.match(content, skip + begin)
            if word is None or word.end() > known.settled:
                break
            final += 1
        if final == len(ranges) - 1 and kept[-1] == "\n" and known.settled == len(content):
            final += 1
        return Rows(lines, min(final, len(lines)))

    def _settled_part(self, source: str) -> str:
        """Return the part of an open paragraph that cannot be read in another way later."""
        if self._source[-1] == "":
            source += "\n"
        complete, _, partial = source.rpartition("\n")
        earlier, _, line = complete.rpartition("\n")
        if complete and _may_be_head(line) and not partial.strip("|:- \t"):
            return f"{earlier}\n" if earlier else ""
        if line.endswith("\\") and not partial:  # a line break, if another line follows
            source = partial = source.rstrip("\n")
        # The last word can grow.
        end = max(partial.rfind(" "), partial.rfind("\t")) + 1
        if _may_be_head(partial) or len(partial) < HEAD_WITHIN:
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
        number = read_number(node) if self._number is None else self._number
        self._number = None
        items: list[tuple[Node, Rows]] = []
        for index, item in enumerate(node.children):
            mark = "•" if number is None else f"{number + index}."
            task = _TASK.match(_first_text(item))
            if task is not None:
                box = "☐" if task[1] == " " else "☑"
                mark = box if number is None else f"{mark} {box}"
                self._skip = task.end()
            indent = " " * (len(mark) + 1)
            inner = self._blocks(item.children, width - len(indent))
            rows = [f"{indent}{line}".rstrip() for line in inner.lines] or [""]
            rows[0] = f"{mark} {rows[0][len(indent) :]}".rstrip()
            items.append((item, Rows(rows, len(rows) if self._complete else inner.final)))
        return items

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
        lines, starts = _table_rows(cells_of, [style.partition(":")[2] for style in styles], width)
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
    return build_rows(spans, wrap(whole, width))


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


def _first_text(item: Node) -> str:
    """The source of the paragraph that begins an item; empty if it begins with another block."""
    is_text = item.children and item.children[0].token.type == "paragraph_open"
    return item.children[0].children[0].token.content if is_text else ""


def is_list(node: Node) -> bool:
    """Return True if a block is a list."""
    return node.token.type in ("bullet_list_open", "ordered_list_open")


def read_number(node: Node) -> int | None:
    """Return the number of the first item of a list; None if it is not ordered."""
    return None if node.token.type != "ordered_list_open" else int(node.token.attrs.get("start", 1))


_CODE_CONTEXT = 100
"""Lines of code that are read again for the colours of those that follow."""

_LONG_PARAGRAPH = 2000
"""Characters from which a paragraph is cut once lines of it are given out."""

_MARKS = re.compile(r"\A\s*(?:(?:>|[-*+]|\d{1,9}[.)])\s+)*")
_UNDECIDED = re.compile(r"[-*+_=#`~|:>.)\d\s]*|(?:```|~~~).*")
"""The beginnings of a line that more text can turn into another kind of block."""

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
        """True if no text has come since the last `finish`."""
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
        nodes = _build_nodes(parser.parse(self._text, {"complete": complete}))
        renderer = BlockRenderer(
            lines, complete=complete, number=self._number, code_before=self._code, skip=self._skip
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
        number = read_number(node) if self._number is None else self._number
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
