"""Markdown for a terminal: keep all text, and print finished blocks early.

Import this only for a terminal: it loads Rich and its Markdown parser.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

# HTML would be dropped, images reduced to an icon, link definitions swallowed.
_LOSSY_RULES = ["html_block", "html_inline", "image", "reference"]


def _parser() -> MarkdownIt:
    return MarkdownIt().enable(["strikethrough", "table"]).disable(_LOSSY_RULES)


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, Any]] = dict.fromkeys(Heading.LEVEL_ALIGN, "default")


class _PlainCodeBlock(CodeBlock):
    """Code in the colours of the terminal, without a background that would be copied with it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        syntax = Syntax("", self.lexer_name, theme="ansi_dark", background_color="default")
        code = syntax.highlight(str(self.text).rstrip())
        code.rstrip()
        code.overflow = "fold"
        yield Padding(code, (0, 0, 0, 2), expand=False)


class FaithfulMarkdown(Markdown):
    """Rich's Markdown, but all text is kept: line breaks, HTML source, and the address of every
    link."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCodeBlock,
        "code_block": _PlainCodeBlock,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False, justify="default")
        self.markup = text
        self.parsed = _parser().parse(text)
        for token in self.parsed:
            if token.children:
                token.children = _kept(token.children)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            segments = list(super().__rich_console__(console, options))
            lines = [_trimmed(line) for line in Segment.split_lines(_segments(segments))]
        # Rich raises on some malformed tables and quotes; show the plain text then.
        except Exception:
            yield Text(self.markup)
            return
        # Rich adds an empty line before lists and after rules; the caller controls spacing.
        while lines and not lines[0]:
            del lines[0]
        while lines and not lines[-1]:
            del lines[-1]
        for line in lines:
            yield from line
            yield Segment.line()


def _segments(rendered: list[Any]) -> list[Segment]:
    return [segment for segment in rendered if isinstance(segment, Segment)]


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Return a line without trailing spaces, which would be copied with it."""
    line = list(line)
    while line:
        text, style, control = line[-1]
        if text.rstrip(" "):
            line[-1] = Segment(text.rstrip(" "), style, control)
            break
        del line[-1]
    return line


def _kept(children: list[Token]) -> list[Token]:
    """Turn soft breaks into hard breaks, and links that show their own address into text."""
    kept: list[Token] = []
    index = 0
    while index < len(children):
        token = children[index]
        if token.type == "softbreak":
            token.type = "hardbreak"
        if token.type == "link_open" and _shows_its_address(children[index : index + 3]):
            kept.append(children[index + 1])
            index += 3
            continue
        kept.append(token)
        index += 1
    return kept


def _shows_its_address(tokens: list[Token]) -> bool:
    if len(tokens) < 3 or tokens[1].type != "text" or tokens[2].type != "link_close":
        return False
    return tokens[1].content == str(tokens[0].attrs.get("href", ""))


class Block(NamedTuple):
    """A finished piece of Markdown; `continues` is set for further items of a list."""

    text: str
    continues: bool


class BlockSplitter:
    """Splits growing Markdown into finished pieces that more text cannot change.

    A piece is a top-level block, or an item of a top-level list.
    """

    def __init__(self) -> None:
        self._parser = _parser().disable("inline")
        self._text = ""
        self._continues = False
        self._grown = False

    @property
    def rest(self) -> str:
        """The unfinished text."""
        return self._text

    def feed(self, text: str) -> None:
        self._text += text
        self._grown = self._grown or "\n" in text

    def finished(self) -> list[Block]:
        """Return the pieces finished since the last call."""
        if not self._grown:
            return []
        self._grown = False
        tokens = self._parser.parse(self._text)
        blocks = [t for t in tokens if t.level == 0 and t.nesting >= 0 and t.map]
        pieces: list[Block] = []
        lines = self._text.split("\n")
        start = 0
        for block in blocks[1:]:
            start = self._cut(pieces, lines, start, _first_line(block), in_list=False)
        if blocks and blocks[-1].type in ("bullet_list_open", "ordered_list_open"):
            for item in _items(tokens, blocks[-1])[1:]:
                start = self._cut(pieces, lines, start, _first_line(item), in_list=True)
        self._text = "\n".join(lines[start:])
        return pieces

    def flush(self) -> list[Block]:
        """Return the remaining pieces at the end of the text."""
        pieces = self.finished()
        if self._text.strip():
            pieces.append(Block(self._text, self._continues))
        self._text, self._continues = "", False
        return pieces

    def _cut(
        self, pieces: list[Block], lines: list[str], start: int, stop: int, *, in_list: bool
    ) -> int:
        text = "\n".join(lines[start:stop])
        if text.strip():
            pieces.append(Block(text, self._continues))
        self._continues = in_list
        return stop


def _first_line(token: Token) -> int:
    assert token.map is not None
    return token.map[0]


def _items(tokens: list[Token], opening: Token) -> list[Token]:
    after = tokens[tokens.index(opening) :]
    return [t for t in after if t.type == "list_item_open" and t.level == 1 and t.map]
