"""Markdown on a terminal keeps all text; block by block looks the same as all at once."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from amplifier_app.render.markdown import BlockSplitter, FaithfulMarkdown


def rendered(text: str, width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(FaithfulMarkdown(text))
    output = console.file
    assert isinstance(output, io.StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n")


@pytest.mark.parametrize(
    "text",
    [
        "Use <div> and List<String> here",
        "<details>\nhidden\n</details>",
        "See [1]\n\n[1]: http://example.com",
        "[bold]not markup[/bold]",
        "line one\nline two",
    ],
)
def test_text_that_markdown_would_drop_is_shown(text: str) -> None:
    shown = rendered(text)
    for word in text.split():
        assert word in shown


def test_the_address_of_a_link_is_shown_once() -> None:
    assert rendered("[docs](http://a.example/x)") == "docs (http://a.example/x)"
    assert rendered("<http://a.example/x>") == "http://a.example/x"
    assert "http://a.example/i.png" in rendered("![alt](http://a.example/i.png)")


def test_line_breaks_in_a_paragraph_are_kept() -> None:
    assert rendered("roses are red\nviolets are blue") == "roses are red\nviolets are blue"


def split(pieces: list[str]) -> list[str]:
    splitter = BlockSplitter()
    blocks: list[str] = []
    for piece in pieces:
        splitter.feed(piece)
        blocks += [block.text for block in splitter.finished()]
    return blocks + [block.text for block in splitter.flush()]


def test_a_block_is_printed_when_the_next_one_starts() -> None:
    splitter = BlockSplitter()
    splitter.feed("First paragraph.\n\nSec")
    assert splitter.finished()[0].text.strip() == "First paragraph."
    assert splitter.rest == "Sec"


def test_a_fence_with_blank_lines_is_one_block() -> None:
    splitter = BlockSplitter()
    splitter.feed("```python\na = 1\n\nb = 2\n")
    assert splitter.finished() == []
    splitter.feed("```\nafter\n")
    assert [block.text for block in splitter.finished()] == ["```python\na = 1\n\nb = 2\n```"]


def test_list_items_are_printed_one_by_one_with_their_numbers() -> None:
    splitter = BlockSplitter()
    splitter.feed("1. one\n2. two\n   - nested\n3. th")
    assert [(block.text, block.continues) for block in splitter.finished()] == [
        ("1. one", False),
        ("2. two\n   - nested", True),
    ]
    splitter.feed("ree\n")
    (last,) = splitter.flush()
    assert last.continues
    assert "3 three" in rendered(last.text)


_LINES = st.sampled_from(
    [
        "text",
        "",
        "# heading",
        "- item",
        "  more of it",
        "1. first",
        "2. second",
        "```",
        "    code",
        "> quote",
        "a | b",
        "--|--",
        "---",
        "*em* and `code`",
    ]
)


@given(st.lists(_LINES, max_size=14), st.integers(1, 7))
def test_the_pieces_make_up_the_text(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    together = "\n".join(split(pieces))
    assert [line for line in together.split("\n") if line.strip()] == [
        line for line in lines if line.strip()
    ]
