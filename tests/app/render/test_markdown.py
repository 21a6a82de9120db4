"""Markdown on a terminal keeps all text, and looks the same however it arrives."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier_app.render.ansi import ascii_rows, cell_rows, cells, plain
from amplifier_app.render.markdown import MarkdownStream, markdown_lines
from tests.support.screen import Emulator


def rendered(text: str, width: int = 60) -> list[str]:
    return [plain(line).rstrip() for line in markdown_lines(text, width)]


@pytest.mark.parametrize(
    "text",
    [
        "Use <div> and List<String> here",
        "<details>\nhidden\n</details>",
        "See [1]\n\n[1]: http://example.com",
        "[bold]not markup[/bold]",
        "line one\nline two",
        "a line\n---\n",
    ],
)
def test_text_that_markdown_would_drop_is_shown(text: str) -> None:
    shown = " ".join(rendered(text))
    for word in text.replace("---", "─").split():
        assert word in shown


def test_the_address_of_a_link_is_shown_once() -> None:
    assert rendered("[docs](http://a.example/x)") == ["docs (http://a.example/x)"]
    assert rendered("<http://a.example/x>") == ["http://a.example/x"]
    assert "http://a.example/i.png" in rendered("![alt](http://a.example/i.png)")[0]


def test_line_breaks_in_a_paragraph_are_kept() -> None:
    assert rendered("roses are red\nviolets are blue") == ["roses are red", "violets are blue"]


CODE = 'def f(x):\n    return {"text": x, "long": "a very long line that does not fit"}  # why'


@pytest.mark.parametrize("width", [40, 80, 120])
def test_code_wider_than_the_terminal_is_wrapped(width: int) -> None:
    lines = rendered(f"```python\n{CODE}\n```", width)
    assert all(cells(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == CODE.replace("\n", "").replace(" ", "")


def test_code_is_folded_between_words_below_its_indentation() -> None:
    lines = rendered(f"```python\n{CODE}\n```", 40)
    assert lines == [
        "  def f(x):",
        '      return {"text": x, "long": "a very',
        '      long line that does not fit"}  #',
        "      why",
    ]
    word = "x" * 60
    assert rendered(f"```\n{word} y\n```", 40) == [f"  {word[:38]}", f"  {word[:22]} y"]


TABLE = """\
| Name | Description | Count |
|:-----|-------------|------:|
| `src/parse_the_file.py` | reads the whole file and parses it | 12 |
| b | second | 3 |
"""


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_tables_keep_all_their_text(width: int) -> None:
    lines = rendered(TABLE, width)
    assert all(cells(line) <= width for line in lines)
    together = "".join(line.replace("│", "").replace("─", "") for line in lines).replace(" ", "")
    for word in ["Name", "Description", "Count", "whole", "second", "12"]:
        assert word in together
    if width >= 80:
        assert lines[0].startswith("Name")
        assert lines[2].endswith("12")


def test_columns_of_a_table_are_aligned_as_written() -> None:
    table = "| left | centre | right |\n|:--|:-:|--:|\n| a | b | c |\n"
    assert rendered(table, 40)[2] == "a    │   b    │     c"


def test_a_table_with_more_columns_than_fit_is_printed_value_by_value() -> None:
    wide = "|" + "|".join(f"head{n}" for n in range(8)) + "|\n" + "|-" * 8 + "|\n"
    wide += "|" + "|".join(f"value{n}" for n in range(8)) + "|\n"
    assert rendered(wide, 40) == [f"head{n}: value{n}" for n in range(8)]


def test_lists_keep_numbers_nesting_and_empty_lines() -> None:
    text = "3. three\n3. four\n   - nested\n\n     more\n\n5. five"
    assert rendered(text) == [
        "3. three", "4. four", "   • nested", "", "     more", "", "5. five",
    ]  # fmt: skip


def test_items_of_a_task_list_begin_with_a_box() -> None:
    text = "- [x] done\n- [ ] **open** and\n  more\n  - [X] nested\n- [x]\n- [1] note\n- [x](a)"
    assert rendered(text) == [
        "☑ done", "☐ open and", "  more", "  ☑ nested", "• [x]", "• [1] note", "• x (a)",
    ]  # fmt: skip
    assert rendered("1. [ ] first") == ["1. ☐ first"]
    stream = MarkdownStream(lambda: 14)
    assert taken(stream, "- [x] a long t") == []
    assert [plain(line) for line in stream.rest] == ["☑ a long t"]
    assert taken(stream, "ask with words\n") == ["☑ a long task", "  with words"]


def test_colours_can_be_read_on_light_and_dark_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = f"# Head\n\n`code` **bold**\n\n```python\n{CODE}\n```\n\n{TABLE}"
    emulator = Emulator(80, 40)
    emulator.feed("\r\n".join(markdown_lines(text, 80)))
    cells_shown = [cell for row in emulator.screen.buffer.values() for cell in row.values()]
    assert {cell.bg for cell in cells_shown} == {"default"}
    assert {cell.fg for cell in cells_shown} <= {"default", "red", "green", "magenta", "cyan"}
    head = emulator.screen.buffer[0][0]
    assert (head.bold, head.underscore, head.fg) == (True, False, "default")


def test_no_color_keeps_bold_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = markdown_lines(f"# Head\n\n`code`\n\n```python\n{CODE}\n```", 80)
    assert lines[0] == "\x1b[1mHead\x1b[0m"
    assert lines[2] == "code"
    assert not any(f"[{code}m" in line for line in lines for code in (31, 32, 33, 35, 36))


# Streaming


def taken(stream: MarkdownStream, text: str) -> list[str]:
    stream.feed(text)
    return [plain(line) for line in stream.take()]


def test_code_is_given_out_line_by_line() -> None:
    stream = MarkdownStream(lambda: 40)
    assert taken(stream, "Look:\n\n```python\n") == ["Look:"]
    assert taken(stream, "a = 1\n") == ["", "  a = 1"]
    assert taken(stream, "b =") == []
    assert [plain(line) for line in stream.rest] == ["  b ="]
    assert taken(stream, " 2\n\n") == ["  b = 2", ""]
    assert taken(stream, "```\n") == []
    assert [plain(line) for line in stream.finish()] == []


def test_a_paragraph_is_given_out_row_by_row() -> None:
    stream = MarkdownStream(lambda: 20)
    assert taken(stream, "one two three four five six") == []
    assert taken(stream, " seven eight") == ["one two three four"]
    assert [plain(line) for line in stream.rest] == ["five six seven eight"]
    assert taken(stream, "\n") == ["five six seven eight"]


def test_text_that_may_become_markup_waits() -> None:
    stream = MarkdownStream(lambda: 20)
    assert taken(stream, "see **all of this text which is ") == []
    assert taken(stream, "bold** and then more of it ") == [
        "see all of this text",
        "which is bold and",
    ]


def test_list_items_are_given_out_when_they_are_complete() -> None:
    stream = MarkdownStream(lambda: 40)
    assert taken(stream, "1. one\n1. tw") == ["1. one"]
    assert taken(stream, "o\n1. three\n") == ["2. two", "3. three"]


def test_rows_of_a_long_table_are_given_out() -> None:
    stream = MarkdownStream(lambda: 40)
    rows = [f"| row {n} | {n} |\n" for n in range(30)]
    assert taken(stream, "| a | b |\n|---|---|\n" + "".join(rows[:5])) == []
    assert len(taken(stream, "".join(rows[5:20]))) == 22, "the head, its line and the rows"
    assert taken(stream, rows[20])[0].split(" │ ") == ["row 20  ", "20"]


def test_a_long_paragraph_is_not_read_again_and_again() -> None:
    stream = MarkdownStream(lambda: 80)
    lines: list[str] = []
    for number in range(1000):
        lines += taken(stream, f"word{number} ")
        assert len(stream._text) < 5000  # pyright: ignore[reportPrivateUsage]
    lines += [plain(line) for line in stream.finish()]
    assert lines == rendered(" ".join(f"word{number}" for number in range(1000)), 80)


def test_a_block_keeps_its_width_when_the_terminal_is_resized() -> None:
    width = 30
    stream = MarkdownStream(lambda: width)
    shown = taken(stream, "aaa " * 20)
    assert len(shown) == 2
    width = 60
    shown += taken(stream, "aaa " * 5 + "\n\n" + "bbb " * 14)
    assert all(len(line) <= 30 for line in shown)
    assert len(stream.rest) == 2  # the empty line, and one row of 55 cells


_LINES = st.sampled_from(
    [
        "text",
        "a longer line of text with **bold** words and `code` that is wrapped",
        'an *open* mark ** here and a [link](http://a.example/some/path "title") and [1] more',
        "日本語のテキスト and ✅ emoji, snake_case_name, 5*3*2",
        "",
        "",
        "# heading with *em*",
        "- item",
        "- [x] done **task**",
        "2. [ ] open",
        "* other bullet with a text that needs more than one row at forty columns",
        "  more of it",
        "1. first",
        "2. second",
        "10) tenth",
        "   - nested item",
        "```",
        "```python",
        "~~~",
        "   ```",
        "    code = 'in a block that is wider than forty columns, so it is wrapped'",
        "> quote",
        "> > nested quote",
        "> - item in a quote",
        "a | b",
        "| cell | another cell with text | `x` |",
        "--|--",
        "|---|:--:|--:|",
        "| a",
        "---",
        "===",
        "***",
        "**",
        "_",
        "\\*escaped\\* &amp; <b>html</b>",
        "trailing spaces  ",
        "\ttab",
        "a_word_that_is_longer_than_any_row_of_forty_columns_and_must_be_broken_somewhere",
    ]
)


def streamed(text: str, cuts: list[int], width: int) -> list[str]:
    """Return the scrollback of an emulated terminal that shows text in pieces."""
    stream = MarkdownStream(lambda: width)
    lines: list[str] = []
    ends = [*sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    start = 0
    for end in ends:
        stream.feed(text[start:end])
        lines += stream.take()
        start = end
    return scrollback([*lines, *stream.finish()], width)


def scrollback(lines: list[str], width: int) -> list[str]:
    emulator = Emulator(width, 50)
    emulator.feed("".join(f"{line}\r\n" for line in lines))
    return emulator.lines()


@given(
    st.lists(_LINES, max_size=12),
    st.lists(st.integers(0, 2000), max_size=40),
    st.sampled_from([40, 80, 120]),
)
@example(["a | b", "--|--", "x"], [3, 5, 7, 9], 40)
@example(["- item", "", "```", "1. first"], list(range(40)), 40)
@example(["- item", "---"], list(range(40)), 40)
@example(["> quote", "**"], list(range(40)), 40)
@example(["| a", "---"], list(range(40)), 40)
def test_cut_anywhere_the_screen_is_the_same(lines: list[str], cuts: list[int], width: int) -> None:
    text = "\n".join(lines)
    at_once = markdown_lines(text, width)
    assert all(cells(line) <= width for line in at_once)
    assert streamed(text, cuts, width) == scrollback(at_once, width)


@given(
    st.text(st.sampled_from("ab cx*_`[]()|-#>1.\n\\!~<&日"), max_size=120),
    st.sampled_from([40, 80]),
)
def test_any_text_is_the_same_character_by_character(text: str, width: int) -> None:
    expected = scrollback(markdown_lines(text, width), width)
    assert streamed(text, list(range(len(text))), width) == expected


@given(st.text(st.sampled_from("ab   "), max_size=80), st.integers(2, 20))
@example("   a", 2)
def test_wrapping_is_the_same_with_and_without_wide_characters(line: str, width: int) -> None:
    line = line.rstrip()
    assert ascii_rows(line, width) == cell_rows(line, width)
