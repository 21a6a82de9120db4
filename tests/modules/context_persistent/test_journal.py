"""The file of a conversation: what it gives back, what it repairs, and what it refuses."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_core.message_models import TextBlock
from amplifier_modules.context_persistent.manager import HEADER, Journal, JournalError
from amplifier_support.journal import CLEAR, replacement


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "context.jsonl"


def written(path: Path, *records: Any) -> None:
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()


def read(path: Path) -> list[dict[str, Any]]:
    journal = Journal(path)
    journal.close()
    return journal.messages


def test_messages_come_back_as_they_were(path: Path) -> None:
    odd = [
        said("ünïcode \ud800 \u2028 and\nlines"),
        {"role": "developer", "content": [{"type": "x", "n": 1.5, "b": None}], "extra": {"a": []}},
    ]
    written(path, *odd)
    assert read(path) == odd
    first, *lines = path.read_text("ascii").splitlines()
    assert json.loads(first) == HEADER
    assert [json.loads(line) for line in lines] == odd


def test_clearing_and_replacing_keep_what_was_before_in_the_file(path: Path) -> None:
    written(path, said("a"), CLEAR, said("b"), replacement([said("c"), said("d")]), said("e"))
    assert read(path) == [said("c"), said("d"), said("e")]
    assert said("a") in [json.loads(line) for line in path.read_text().splitlines()]


def test_typed_content_is_kept_as_data(path: Path) -> None:
    written(path, {"role": "user", "content": [TextBlock(text="hi")], "tags": {"x"}})
    assert read(path)[0]["content"][0]["text"] == "hi"


def test_nothing_is_created_before_something_is_said(path: Path) -> None:
    Journal(path).close()
    assert not path.exists()


def test_the_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        written(tmp_path / "new" / "deep" / "c.jsonl", said("a"))
    finally:
        os.umask(old)
    path = tmp_path / "new" / "deep" / "c.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", range(1, 45, 4))
def test_a_torn_last_record_is_cut_off_and_reported(path: Path, cut: int) -> None:
    written(path, said("a"), said("b" * 20))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    journal = Journal(path)
    journal.append(said("c"))
    journal.close()
    lost = cut > 1  # without its line feed alone a record is whole
    assert journal.messages == [said("a")] if lost else [said("a"), said("b" * 20)]
    assert (journal.repaired > 0) == lost
    assert read(path) == [*journal.messages, said("c")]


def test_blocks_of_nul_bytes_after_a_power_cut_are_torn_too(path: Path) -> None:
    written(path, said("a"))
    path.write_bytes(path.read_bytes() + b"\x00" * 4096)
    assert read(path) == [said("a")]
    assert b"\x00" not in path.read_bytes()


@pytest.mark.parametrize("size", range(0, 46, 9))
def test_a_file_whose_first_line_was_never_finished_is_begun_again(path: Path, size: int) -> None:
    path.write_bytes(json.dumps(HEADER, separators=(",", ":")).encode()[:size])
    journal = Journal(path)
    assert not journal.has_records
    journal.append(said("a"))
    journal.close()
    assert read(path) == [said("a")]


@pytest.mark.parametrize(
    "line",
    [
        b'{"role": "user", "con\n',
        b"[1]\n",
        b"{}\n",
        b'{"control": "replace"}\n',
        b'{"control": "replace", "messages": [1]}\n',
        b'{"control": "rewind"}\n',
    ],
)
def test_damage_is_named_and_not_touched(path: Path, line: bytes) -> None:
    written(path, said("a"), said("b"))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + line + third)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"context\.jsonl:3: .*(damaged|newer version)"):
        Journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"format": "x"}\n', b'{"role":'])
def test_a_file_of_something_else_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o644)
    with pytest.raises(JournalError, match="is not a conversation"):
        Journal(path)
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_links_folders_and_pipes_are_refused(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    written(target, said("a"))
    path.symlink_to(target)
    with pytest.raises(JournalError, match="it is a link"):
        Journal(path)
    path.unlink()
    path.symlink_to(tmp_path / "missing")
    with pytest.raises(JournalError, match="it is a link"):
        written(path, said("a"))
    assert not (tmp_path / "missing").exists()
    path.unlink()
    path.mkdir()
    with pytest.raises(JournalError, match="Cannot open"):
        Journal(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(JournalError, match="not a regular file"):
        Journal(path)


_HOLDER = """
import sys, time
from pathlib import Path
from amplifier_modules.context_persistent.manager import Journal

journal = Journal(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_there_is_one_writer_until_it_dies(path: Path) -> None:
    written(path, said("a"))
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE)
    with holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(JournalError, match="in use by another session"):
                Journal(path)
        finally:
            holder.kill()
    assert read(path) == [said("a")]


def test_of_two_that_begin_a_file_the_second_is_refused(path: Path) -> None:
    first, second = Journal(path), Journal(path)
    first.append(said("a"))
    with pytest.raises(JournalError, match=r"Cannot (open|create)"):
        second.append(said("b"))
    first.close()
    assert read(path) == [said("a")]


def test_what_is_no_json_is_refused_and_the_file_stays_whole(path: Path) -> None:
    journal = Journal(path)
    journal.append(said("a"))
    endless: list[Any] = []
    endless.append(endless)
    for bad in ({("k",): 1}, endless):
        with pytest.raises(JournalError, match="is not valid JSON"):
            journal.append({"role": "user", "content": bad})
    journal.append(said("b"))
    journal.close()
    assert read(path) == [said("a"), said("b")]


def test_after_the_end_nothing_can_be_appended(path: Path) -> None:
    journal = Journal(path)
    journal.close()
    with pytest.raises(JournalError, match="has ended"):
        journal.append(said("a"))
    assert not path.exists()


def test_a_full_disk_is_reported_and_what_was_saved_stays(path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    journal = Journal(path)
    journal.append(said("a"))
    kept, full = os.dup(journal._writer.descriptor), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._writer.descriptor)
    with pytest.raises(JournalError, match=r"Cannot save to .*No space left"):
        journal.append(said("b"))
    os.dup2(kept, journal._writer.descriptor)
    with path.open("ab") as torn:  # what the disk took of it
        torn.write(b'{"role":"user","content":"b' + b"b" * 100)
    journal.append(said("c"))
    journal.close()
    os.close(full)
    os.close(kept)
    assert b"bbb" not in path.read_bytes()
    assert read(path) == [said("a"), said("c")]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=5), st.integers(0, 200))
def test_whatever_was_said_comes_back_and_a_cut_costs_only_the_end(
    tmp_path_factory: Any, contents: list[Any], cut: int
) -> None:
    path = tmp_path_factory.mktemp("j") / "c.jsonl"
    messages = [{"role": "user", "content": content} for content in contents]
    written(path, *messages)
    if not messages:
        return
    assert read(path) == messages
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    left = read(path)
    assert left == messages[: len(left)]
    assert read(path) == left
