"""Tables fit the terminal, and are whole in a pipe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.render.ansi import cells, plain, wrapped
from amplifier_app.render.table import Column, table
from tests.support.cli import run_amplifier
from tests.support.terminal import Terminal

COLUMNS = (
    Column("ID", "middle", least=8),
    Column("AGE", drop=1),
    Column("COST", drop=2, right=True),
    Column("TITLE", "end", least=10),
)
ROW = ("20260131-120000-a1b2c3", "2 min ago", "$0.12", "Why does the test fail on Mondays?")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            None,
            "20260131-120000-a1b2c3  2 min ago  $0.12  Why does the test fail on Mondays?",
        ),
        (60, "20260131-…000-a1b2c3  2 min ago  $0.12  Why does the test f…"),
        (45, "20260…a1b2c3  2 min ago  $0.12  Why does the…"),
        (35, "20260…1b2c3  2 min ago  Why does t…"),
        (30, "202601…-a1b2c3  Why does the …"),
    ],
)
def test_columns_are_cut_and_dropped_by_priority(width: int | None, expected: str) -> None:
    head, row = table(COLUMNS, [ROW], width)
    assert row == expected
    assert ("COST" in head) is ("$" in row)
    assert ("AGE" in head) is ("ago" in row)


def test_wide_characters_are_aligned() -> None:
    assert table(("A", "B"), [("日本", "x"), ("a", "y")]) == ["A     B", "日本  x", "a     y"]


def test_values_cannot_control_the_terminal() -> None:
    assert table(("A", "B"), [("a\x1b[31m\nb", "c")], 80)[1] == "a b  c"


def test_numbers_are_aligned_to_the_right() -> None:
    lines = table((Column("N", right=True), "X"), [("7", "a"), ("12", "b")])
    assert lines == [" N  X", " 7  a", "12  b"]


CELLS = st.text(st.sampled_from("ab 日本語\N{WHITE HEAVY CHECK MARK}-/."), max_size=60)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4), st.integers(30, 120))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = (Column("A", "middle"), Column("B", "end", drop=1), Column("C", "wrap"))
    assert all(cells(line) <= width for line in table(columns, rows, width))


@given(st.text(st.sampled_from("ab 日本"), max_size=80), st.integers(8, 40))
def test_wrapping_keeps_the_words(text: str, width: int) -> None:
    lines = wrapped(" ".join(text.split()), width, "  ")
    assert all(cells(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_lines_with_wide_characters_are_filled() -> None:
    text = "A 日本語 title with some text that goes on and on beyond the edge"
    assert wrapped(text, 40, "  ") == [
        "A 日本語 title with some text that goes",
        "  on and on beyond the edge",
    ]


@pytest.mark.parametrize("command", ["provider list", "module list", "profile list"])
def test_lists_fit_the_terminal(command: str) -> None:
    listed = run_amplifier(*command.split()).stdout
    names = [line.split()[0] for line in listed.splitlines() if line]
    for columns in (40, 80, 120):
        with Terminal(*command.split(), size=(columns, 60)) as terminal:
            assert terminal.finish() == 0
        shown = terminal.lines()
        written = [plain(line) for line in terminal.raw.replace("\r\n", "\n").split("\n")]
        assert shown == [line.rstrip() for line in written if line or shown][: len(shown)]
        assert max(map(len, shown)) <= columns
        assert [name for name in names if not any(name in line for line in shown)] == []
