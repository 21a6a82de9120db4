"""Diffs with line numbers and colours."""

from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.render import ansi
from amplifier_app.render.ansi import cells, plain
from amplifier_app.render.diff import compare, diff_lines, files_lines, parse, summary
from amplifier_app.render.theme import use_theme

OLD = (
    "def f(path):\n    text = read(path)\n    if not text:\n        return None\n    return text\n"
)
NEW = OLD.replace(
    "        return None\n", "        if strict:\n            raise ValueError\n        return {}\n"
)


def shown(*args: object, **options: object) -> list[str]:
    return [plain(line) for line in diff_lines(*args, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_changes_have_line_numbers_and_marks(width: int) -> None:
    file = compare(OLD, NEW, "src/f.py")
    assert summary([file]) == "+3 −1"
    assert shown(file, width, context=1) == [
        "3       if not text:",
        "4 -         return None",
        "4 +         if strict:",
        "5 +             raise ValueError",
        "6 +         return {}",
        "7       return text",
    ]


def test_more_changed_lines_than_the_limit_are_counted() -> None:
    assert shown(compare("", "a\nb\nc\nd\n"), 40, limit=2) == [
        "1 + a",
        "2 + b",
        "  … 2 more changed lines",
    ]


def test_parts_of_a_line_that_changed_stand_out() -> None:
    (removed, added) = diff_lines(compare("x = first(1)\n", "x = second(1)\n"), 40)
    assert "\x1b[31mx = \x1b[0m\x1b[1;4;31mfirst\x1b[0m\x1b[31m(1)\x1b[0m" in removed
    assert "\x1b[1;4;32msecond\x1b[0m" in added


def test_without_colours_the_marks_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = diff_lines(compare("a\n", "b\n"), 40)
    assert not any("3" in line for line in lines)
    assert [plain(line) for line in lines] == ["1 - a", "1 + b"]


@pytest.fixture
def dark_theme(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("amplifier_app.render.theme._used", None)
    use_theme("dark")
    yield
    ansi.use_colours({})


RED, GREEN, STRONG = "48;2;58;26;28", "48;2;22;48;29", "48;2;42;100;56"


@pytest.mark.usefixtures("dark_theme")
@pytest.mark.parametrize("width", [14, 40])
def test_shaded_changes_have_the_colours_of_the_language(width: int) -> None:
    old = 'def f():\n    """Doc\n    in two lines."""\n    return 12\n'
    file = compare(old, old.replace("12", "34"), "f.py")
    lines = diff_lines(file, width)
    assert all(cells(line) <= width for line in lines)
    assert "\x1b[35mdef " in lines[0]
    removed, added = ([line for line in lines if shade in line] for shade in (RED, GREEN))
    assert f"\x1b[35;{GREEN}mreturn" in "".join(added)
    # Changed words have a colour that can be read on their shade: most others are too dark.
    assert f"\x1b[36;38;5;255;{STRONG}m34" in "".join(added)
    # All changed lines are equally wide.
    assert len({cells(line) for line in removed + added}) == 1
    # A comment that begins in a line above keeps its colour.
    assert "\x1b[32m    in two" in "".join(lines[1:4])
    assert shown(file, 40)[-1].rstrip() == "4 +     return 34"
    assert shown(file, 40)[0] == "1   def f():"


@pytest.mark.usefixtures("dark_theme")
def test_shades_reach_as_far_as_the_longest_change_or_a_frame() -> None:
    file = compare("a\n", "b\nlonger\n", "x.txt")
    assert {cells(line) for line in diff_lines(file, 40)} == {10}
    assert {cells(line) for line in diff_lines(file, 40, fill=True)} == {40}


@pytest.mark.usefixtures("dark_theme")
def test_any_text_keeps_its_characters_with_shades() -> None:
    for name in ("x.py", "x.unknown", "Makefile", "x.json"):
        file = compare("a\n", "'''\nfoo \t{ [\n\nbar\x1b[2J = #x\n", name)
        lines = diff_lines(file, 60)
        assert [plain(line).rstrip() for line in lines] == [
            *("1 - a", "1 + '''", "2 + foo     { [", "3 +", "4 + bar = #x"),
        ]


def test_long_lines_are_folded_and_control_characters_removed() -> None:
    lines = shown(compare("", "a\x1b[31mb\t" + "日" * 30 + "\n"), 40)
    assert all(cells(line) <= 40 for line in lines)
    assert "".join(line[4:] for line in lines) == "ab    " + "日" * 30


def test_a_unified_diff_of_several_files_is_read() -> None:
    diff = (
        "edited a.py in 1 place\n--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n--- removed dashes\n+++ added\n+x\n"
        "@@ -9 +10 @@\n-y\n+z\n\\ No newline at end of file\n"
        "diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
    )
    first, second = parse(diff)
    assert (first.path, first.added, first.removed) == ("a.py", 3, 2)
    assert (second.path, second.added, second.removed) == ("old", 0, 1)
    assert shown(first, 40) == [
        " 1 - -- removed dashes", " 1 + ++ added", " 2 + x", "   ⋮", " 9 - y", "10 + z",
    ]  # fmt: skip
    assert [plain(line) for line in files_lines([second], 40)] == ["old  +0 −1", "1 - gone"]


LINES = st.lists(st.sampled_from(["a", "b b", "", "-- x", "++ y", "@@ -1 +1 @@", "c d e"]))


@given(LINES, LINES)
def test_every_line_is_where_its_number_says(old: list[str], new: list[str]) -> None:
    file = compare("\n".join(old), "\n".join(new))
    before, after = "\n".join(old).splitlines(), "\n".join(new).splitlines()
    for line in file.lines:
        if line.mark != "@":
            assert (before if line.mark == "-" else after)[line.number - 1] == line.text
    assert len(before) - file.removed == len(after) - file.added
    rows = [line for line in shown(file, 200) if "⋮" not in line]
    assert len(rows) == sum(line.mark != "@" for line in file.lines)
