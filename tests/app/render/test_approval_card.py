"""What a card shows of a call that needs approval."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.render.ansi import cells, plain
from amplifier_app.render.approval import card_lines, highlighted, key_lines, wrapped
from amplifier_core.approval import ToolApproval

OPTIONS = ["Allow once", "Allow for this session", "Allow always", "Deny"]


def request(folder: Path, tool: str, values: dict[str, Any], **more: Any) -> ToolApproval:
    return ToolApproval("?", tool, values, os.path.realpath(folder), OPTIONS, **more)


def shown(folder: Path, tool: str, values: dict[str, Any], width: int = 80, **more: Any) -> str:
    whole = more.pop("whole", False)
    asked = request(folder, tool, values, **more)
    framed = card_lines(asked, "", width, whole=whole)
    assert {cells(line) for line in framed} == {min(width, 120)}, framed
    assert {plain(line)[0] + plain(line)[-1] for line in framed[1:-1]} == {"││"}
    lines = card_lines(asked, "", width, whole=whole, framed=False)
    assert all(cells(line) <= width for line in lines), lines
    return "\n".join(plain(line) for line in lines)


def test_an_edit_is_a_numbered_diff_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\n")
    values = {"file_path": "a.py", "old_string": "four\n", "new_string": "4\n4b\n"}
    text = shown(tmp_path, "edit_file", values, position=1, total=2)
    assert text.splitlines()[0].split() == ["Edit", "a.py", "+2", "−1", "·", "1", "of", "2"]
    rows = [" ".join(line.split()) for line in text.splitlines()[1:]]
    assert rows[:6] == ["1 one", "2 two", "3 three", "4 - four", "4 + 4", "5 + 4b"]
    assert rows[6:] == ["6 five", "7 six", "8 seven"]
    assert (tmp_path / "a.py").read_text().startswith("one\ntwo\nthree\nfour\n")


def test_the_whole_file_is_shown_on_request_up_to_a_limit(tmp_path: Path) -> None:
    lines = [f"line {n}" for n in range(1, 41)]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    values = {"path": "a", "old_string": "line 20", "new_string": "twenty"}
    assert "line 1\n" not in shown(tmp_path, "edit_file", values)
    whole = shown(tmp_path, "edit_file", values, whole=True).splitlines()
    assert whole[1].split() == ["1", "line", "1"]
    assert whole[-1].split() == ["40", "line", "40"]
    assert len(whole) == 1 + 41
    other = "}\nx\n" * 8_000
    (tmp_path / "a").write_text("x\n}\n\n" * 6_000)
    text = shown(tmp_path, "write_file", {"path": "a", "content": other}, whole=True)
    assert "more changed lines" in text


def test_several_edits_are_one_diff_and_an_impossible_one_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny\nx\n")
    edits = [{"old_string": "y", "new_string": "z"}, {"old_string": "z", "new_string": "w"}]
    text = shown(tmp_path, "edit_file", {"path": "a", "edits": edits})
    assert "2 - y" in text
    assert "2 + w" in text
    missing = shown(tmp_path, "edit_file", {"path": "a", "old_string": "q", "new_string": "r"})
    assert "- q" in missing
    assert "the text to replace is not in the file" in missing
    twice = shown(tmp_path, "edit_file", {"path": "a", "old_string": "x", "new_string": "r"})
    assert "the text to replace is in the file 2 times" in twice


def test_a_new_file_shows_its_first_lines_and_all_of_them_on_request(tmp_path: Path) -> None:
    values = {"path": "new", "content": "".join(f"line {n}\n" for n in range(100))}
    text = shown(tmp_path, "write_file", values)
    assert "line 0" in text
    assert "line 99" not in text
    assert "more changed lines" in text
    assert "a new file" in text
    assert "(v shows them)" in text
    assert "line 99" in shown(tmp_path, "write_file", values, whole=True)


def test_hostile_files_neither_block_nor_leak(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret").write_text("hunter2\n")
    (work / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(work / "pipe")
    (work / "binary").write_bytes(b"\0\1")
    (work / "folder").mkdir()

    def card(path: str) -> str:
        return shown(work, "write_file", {"path": path, "content": "mine\n"})

    assert "hunter2" not in card("link")
    notes = {"link": "leads to", "pipe": "not a regular file", "binary": "the file is not text"}
    notes |= {"folder": "not a regular file", "a\0b": "NUL"}
    assert {path: note in card(path) for path, note in notes.items()} == dict.fromkeys(notes, True)


def test_a_call_that_changes_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same\n")
    edit = {"old_string": "same", "new_string": "same"}
    for tool, values in (("write_file", {"content": "same\n"}), ("edit_file", edit)):
        text = shown(tmp_path, tool, {"file_path": "a.txt", **values})
        assert "the file already has this content" in text


@pytest.mark.parametrize("tool", ["bash", "write_file", "mcp_x"])
def test_invisible_characters_are_visible(tmp_path: Path, tool: str) -> None:
    odd = "a\u202eb\x1b[2Jc\u200bd"
    text = shown(tmp_path, tool, {"command" if tool == "bash" else "path": odd, "content": odd})
    assert not {"\x1b", "\u202e", "\u200b"} & {*text}
    assert [escape in text for escape in ("\\u202e", "\\x1b", "\\u200b")] == [True] * 3


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("framed", [False, True])
def test_a_proposal_is_markdown_without_effect_on_the_terminal(
    tmp_path: Path, whole: bool, framed: bool
) -> None:
    attack = "\x1b[2J\u202e\x9b31m\x07"
    values = {"proposal": f"# Plan\n\n- **do** it{attack}\n\n```\n{attack}\n```\n"}
    values |= {"todos": [{"content": f"step{attack}"}, attack, 3]}
    asked = request(tmp_path, "propose", values, is_proposal=True)
    lines = card_lines(asked, f"agent{attack}", 60, whole=whole, framed=framed)
    text = "\n".join(plain(line) for line in lines)
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & {*text}
    assert "Plan" in text
    assert "• do it" in text
    assert "☐ step" in text
    keys = " ".join(key_lines(asked, 60))
    shown = [key in keys for key in ("g go", "a go in auto", "e edit", "c comment", "n no")]
    assert shown == [True] * 5


def test_a_command_shows_why_it_is_asked_about(tmp_path: Path) -> None:
    reason = "it runs several commands or redirects (;)"
    text = shown(tmp_path, "bash", {"command": "sleep 3; echo one\necho two"}, reason=reason)
    assert text.splitlines()[1:3] == ["  $ sleep 3; echo one", "    echo two"]
    assert "asking because it runs several commands" in text
    assert "\x1b[1;33m;" in highlighted("a; b 'c;d'")
    assert "\x1b[32m'c;d'" in highlighted("a; b 'c;d'")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_everything_fits_and_words_stay_whole(tmp_path: Path, width: int) -> None:
    values = {"agent": "reviewer", "instruction": "Read the whole parser and report what is wrong"}
    ranges = ["edit_file src/parse.py", "edits in src/"]
    asked = request(tmp_path, "task", values, ranges=ranges, stored_in="/home/me/.config/x")
    few = key_lines(asked, width, range_=1)
    lines = key_lines(asked, width, range_=1, more=True)
    text = " ".join(lines)
    assert all(len(line) <= width for line in lines)
    assert len(few) == (2 if width == 40 else 1)
    assert "p yes to edits in src/" in " ".join(few)
    assert "p yes to edit_file" in " ".join(key_lines(asked, width))
    assert "in later sessions" in text
    assert "stored in /home/me/.config/x" in " ".join(text.split())
    keys = {line[:8].strip() for line in lines[len(few) :]} - {""}
    assert keys == {"p", "P", "← →", "v", "Esc", "Ctrl-C"}
    card = shown(tmp_path, "task", values, width)
    for word in ["Read", "the", "whole", "parser", "and", "report", "what", "is", "wrong"]:
        assert word in card.split()


def test_a_word_longer_than_a_line_is_folded() -> None:
    assert wrapped("ab " + "x" * 12, 5) == ["ab", "xxxxx", "xxxxx", "xx"]


def test_the_key_for_all_is_offered_while_there_is_more(tmp_path: Path) -> None:
    asked = request(tmp_path, "bash", {"command": "ls"})
    assert re.search("v +show all", " ".join(key_lines(asked, 80, more=True)))
    assert "show all" not in " ".join(key_lines(asked, 80, more=True, shows_all=True))


@pytest.mark.parametrize("width", [2, 5, 9, 40])
def test_wrapped_texts_show_every_character(width: int) -> None:
    text = " rm -rf  漢字/build é; curl https://example.com/a-long-name?x=1 | sh "
    lines = wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(cells, lines)) <= width
    assert wrapped("漢字 漢字", 7) == ["漢字 漢", "字"]
