"""Edits: several at once, errors, and the resulting changes."""

import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules.tool_filesystem.workspace import FileProblem
from amplifier_modules.tool_filesystem.write_tools import (
    Edit,
    apply,
    apply_edits,
    changes,
    unified_diff,
)


def edit(old: str, new: str, **more: Any) -> dict[str, Any]:
    return {"old_string": old, "new_string": new, **more}


async def test_several_edits_are_made_one_after_the_other(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.py"
    path.write_text("".join(f"line {n}\n" for n in range(1, 31)))
    edits = [
        edit("line 28\n", ""),
        edit("line 3\n", "three\nand more\n"),
        edit("and more", "and much more"),
        edit("line 1", "LINE 1", replace_all=True),
    ]
    text = await ws.ok("edit_file", file_path="a.py", edits=edits)
    lines = path.read_text().split("\n")
    assert lines[:5] == ["LINE 1", "line 2", "three", "and much more", "line 4"]
    assert "LINE 19" in lines
    assert "line 28" not in lines
    assert text.startswith("edited a.py in 14 places\n--- a/a.py\n+++ b/a.py\n@@ -1,22 +1,23 @@\n")
    assert text.count("@@ -") == 2
    assert [event for event, _ in ws.events] == ["artifact:write"]


async def test_all_edits_are_made_or_none(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    message = await ws.error(
        "edit_file",
        "TextNotFound",
        file_path="a.txt",
        edits=[edit("one", "1"), edit("two", "2"), edit("one", "uno")],
    )
    assert message.startswith("'a.txt': edit 3 of 3: old_string is not in the file")
    assert message.endswith("\nNo edit was made.")
    assert path.read_text() == "one\ntwo\nthree\n"
    message = await ws.error(
        "edit_file",
        "TextNotUnique",
        file_path="a.txt",
        edits=[edit("two", "one"), edit("one", "1")],
    )
    assert "edit 2 of 2: old_string occurs 2 times, at lines 1, 2" in message
    assert path.read_text() == "one\ntwo\nthree\n"
    assert ws.events == []


async def test_edits_that_undo_each_other_change_nothing(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("one\n")
    message = await ws.error(
        "edit_file",
        "NothingToChange",
        file_path="a.txt",
        edits=[edit("one", "1"), edit("1", "one")],
    )
    assert message == "'a.txt': the edits cancel each other out: nothing would change"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the parameter 'old_string' is required, unless 'edits' is given"),
        ({"old_string": "a"}, "the parameter 'new_string' is required, unless 'edits' is given"),
        (
            {"edits": [edit("a", "b")], "replace_all": True},
            "'edits' and 'replace_all' are mutually exclusive",
        ),
        ({"edits": []}, "'edits' has 0 items, not 1 or more"),
        ({"edits": ["a"]}, "'edits[0]' must be of type object, not str"),
        ({"edits": [{"old_string": "a"}]}, "edits[0]: the parameter 'new_string' is required"),
        ({"edits": [edit("a", "b"), edit("a", 3)]}, "edits[1]: 'new_string' must be of type"),  # type: ignore[arg-type]
    ],
)
async def test_invalid_edits_are_reported(files: Any, values: dict[str, Any], message: str) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("a")
    assert message in await ws.error("edit_file", "InvalidInput", file_path="a.txt", **values)


async def test_edits_keep_encoding_line_ends_and_mode(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_bytes("é one\r\ntwo\r\nthree\n".encode("utf-16"))
    path.chmod(0o755)
    edits = [edit("one\ntwo", "1\n2\n2b"), edit("2b\nthree", "2c\n3")]
    await ws.ok("edit_file", file_path="a.txt", edits=edits)
    assert path.read_bytes() == "é 1\r\n2\r\n2c\r\n3\n".encode("utf-16")
    assert path.stat().st_mode & 0o777 == 0o755


# -- nearest text
# -----------------------------------------------------------------------------------

SOURCE = '''\
def area(width, height):
    """The area."""
    return width * height


def volume(width, height, depth):
    """The volume."""
    base = area(width, height)
    return base * depth
'''


async def missing(files: Any, old: str) -> str:
    ws = await files()
    (ws.folder / "a.py").write_text(SOURCE)
    return await ws.error(
        "edit_file", "TextNotFound", file_path="a.py", old_string=old, new_string="x"
    )


async def test_the_nearest_lines_are_shown(files: Any) -> None:
    old = '    """The volume."""\n    base = width * height\n    return base * depth\n'
    message = await missing(files, old)
    assert "the text at lines 7-9 is the nearest, with 2 of 3 lines the same" in message
    assert message.endswith(
        '\n    """The volume."""\n    base = area(width, height)\n    return base * depth'
    )


async def test_the_nearest_line_is_shown(files: Any) -> None:
    message = await missing(files, "def volume(height, width, depth) -> float:")
    assert "the text at line 6 is the nearest." in message
    assert message.endswith(":\ndef volume(width, height, depth):")


async def test_different_white_space_is_shown_exactly(files: Any) -> None:
    message = await missing(files, "def area(width, height):\n  return width * height")
    assert "is the nearest, with 1 of 2 lines the same" in message
    message = await missing(files, '  """The area."""\n  return width * height')
    assert "lines 2-3 differs only in white space" in message
    assert message.endswith('\n    """The area."""\n    return width * height')


@pytest.mark.parametrize("old", ["   \n\n", "#include <stdio.h>", "}"])
async def test_the_lack_of_similar_text_is_reported(files: Any, old: str) -> None:
    message = await missing(files, old)
    assert "no similar text was found; read the file again" in message


async def test_a_long_nearest_text_is_cut(files: Any) -> None:
    ws = await files()
    lines = [f"value {n} of many" for n in range(200)]
    (ws.folder / "a.txt").write_text("\n".join(lines))
    old = "\n".join([*lines[:150], "something else"])
    message = await ws.error(
        "edit_file", "TextNotFound", file_path="a.txt", old_string=old, new_string=""
    )
    assert "lines 1-151" in message
    assert message.endswith("value 19 of many (cut here; read the file from there)")


# -- combined changes
# -------------------------------------------------------------------------------

TEXTS = st.text(alphabet="ab\n", max_size=60)
EDITS = st.lists(
    st.builds(
        Edit,
        st.text(alphabet="ab\n", min_size=1, max_size=3),
        st.text(alphabet="abc\n", max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(TEXTS, EDITS)
def test_combined_changes_equal_edits_in_sequence(text: str, edits: list[Edit]) -> None:
    expected, made = text, list[Edit]()
    for one in edits:
        try:
            expected = apply(expected, changes(expected, one))
        except FileProblem:
            continue
        made.append(one)
    if expected == text:
        return
    outcome = apply_edits(text, made)
    assert outcome.text == expected
    assert apply(text, outcome.changes) == expected
    ends = [(change.start, change.end) for change in outcome.changes]
    assert all(one[1] <= other[0] for one, other in pairwise(ends))


def test_edits_far_apart_remain_changes_of_their_own() -> None:
    # The time of a diff depends on the changes, not on the lines between them.
    text = "first\n" + "}\n\nreturn\n" * 100 + "last\n"
    outcome = apply_edits(text, [Edit("first", "1"), Edit("last", "2")])
    assert [text[change.start : change.end] for change in outcome.changes] == ["first", "last"]


def test_git_applies_the_diff_with_the_same_result(tmp_path: Path) -> None:
    text = "".join(f"{n % 7} of {n}\n" for n in range(400))
    edits = [
        Edit("3 of ", "three\nof ", everywhere=True),
        Edit("of 101\n", ""),
        Edit("three\nof 3\n", "THREE\n"),
        Edit("0 of 399", "the end"),
    ]
    outcome = apply_edits(text, edits[:3])
    (tmp_path / "a.txt").write_text(text)
    diff = unified_diff("a.txt", text, outcome.changes)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, check=True)
    assert (tmp_path / "a.txt").read_text() == outcome.text
