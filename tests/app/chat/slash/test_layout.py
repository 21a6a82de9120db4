"""Layouts of command output."""

from amplifier_app.chat.slash.layout import Lines, Rows, wrapped_source
from tests.app.chat.slash import read_text


def test_lines_of_source_wrap_below_their_indentation() -> None:
    text = "tools:\n  - module: tool-filesystem  # /a/long/path/plan.yaml:12\n"
    shown = Lines(lambda width: wrapped_source(text, width))
    assert read_text(shown, width=40).splitlines() == [
        "tools:",
        "  - module: tool-filesystem  #",
        "      /a/long/path/plan.yaml:12",
    ]


def _shown(pairs: list[tuple[str, str]], width: int) -> list[str]:
    return [line.rstrip() for line in read_text(Rows(pairs), width=width).splitlines()]


def test_values_are_next_to_their_names_or_below_long_ones() -> None:
    pairs = [("Files", ""), ("  /diff", "File changes of the last prompt"), ("  " + "x" * 26, "y")]
    assert _shown(pairs, 45) == [
        "Files",
        "  /diff  File changes of the last prompt",
        "  " + "x" * 26,
        "         y",
    ]
    assert _shown(pairs, 30) == [
        "Files",
        "  /diff",
        "    File changes of the last",
        "    prompt",
        "  " + "x" * 26,
        "    y",
    ]


def test_numbers_are_aligned_at_the_right() -> None:
    rows = Rows([("input tokens", "1,250"), ("cost", "$1")], numbers=True)
    assert read_text(rows).splitlines() == ["input tokens  1,250", "cost             $1"]
