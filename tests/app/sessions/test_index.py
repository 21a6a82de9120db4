"""The index: files are the truth, and whatever happens to the database, they are listed."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.index import FILE, Index, ask_index
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary
from tests.support.cli import start_python
from tests.support.planted import SECRETS


def save(root: Path, session_id: str, *texts: str, **metadata: Any) -> None:
    saved = SessionStore(root).create(session_id, project="/p", **metadata)
    for text in texts:
        saved.append({"role": "user", "content": text})
    saved.close()


def summaries_in(index: Index) -> list[SessionSummary]:
    return [listed.session for listed in index.page(None, 0).listed]


def listed(root: Path) -> dict[str, SessionSummary]:
    summaries, remark = ask_index(root, summaries_in)
    assert remark == ""
    return {summary.id: summary for summary in summaries}


def found(root: Path, words: str) -> list[str]:
    answer, _ = ask_index(root, lambda index: index.search(words))
    return [match.session.id for match in answer.matches]


def test_titles_are_listed_without_secrets_in_sessions_of_any_version(tmp_path: Path) -> None:
    secret = SECRETS["github-classic"]
    save(tmp_path, "old", title=f"clone with {secret}")
    assert secret in (tmp_path / "old" / "metadata.json").read_text()
    assert listed(tmp_path)["old"].title == "clone with [REDACTED:github-pat]"
    assert found(tmp_path, "clone") == ["old"]
    assert found(tmp_path, secret) == []
    metadata = SessionStore(tmp_path).find("old").metadata
    assert secret not in str(metadata)


def test_each_use_shows_what_the_files_hold_now(tmp_path: Path) -> None:
    assert listed(tmp_path / "none") == {}
    save(tmp_path, "one", title="First")
    save(
        tmp_path,
        "two",
        "text",
        title="Second",
        prompts=3,
        spent={"cost_usd": "0.25", "unpriced": 0},
    )
    assert listed(tmp_path)["two"].title == "Second"
    session = SessionStore(tmp_path).open("two")
    session.update(title="Renamed")
    session.close()
    (tmp_path / "one" / "metadata.json").unlink()
    after = listed(tmp_path)
    assert (after["two"].title, after["two"].prompts, after["two"].cost_usd) == (
        *("Renamed", 3),
        "0.25",
    )
    assert after["one"].fault == "metadata is missing"
    for file in (tmp_path / "two").iterdir():
        file.unlink()
    (tmp_path / "two").rmdir()
    assert list(listed(tmp_path)) == ["one"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "metadata is damaged"),
        ("[1, 2]", "metadata is damaged"),
        ("[" * 100_000, "metadata is damaged"),
        ('{"prompts": ' + "9" * 5_000 + "}", "metadata is damaged"),
        ('{"schema_version": 99, "title": "Of tomorrow"}', "unsupported schema version 99"),
        ('{"schema_version": "two"}', "metadata has an invalid value: schema_version"),
    ],
)
def test_damaged_metadata_is_listed_as_such_next_to_the_others(
    text: str, fault: str, tmp_path: Path
) -> None:
    save(tmp_path, "whole", title="Whole")
    save(tmp_path, "broken")
    (tmp_path / "broken" / "metadata.json").write_text(text)
    both = listed(tmp_path)
    assert both["whole"].fault is None
    assert both["broken"].fault == fault


def test_values_of_the_wrong_type_are_unknown(tmp_path: Path) -> None:
    save(tmp_path, "odd")
    odd = {
        **{key: {"a": 1} for key in ("title", "project", "model", "parent", "agent")},
        "prompts": float("nan"),
        "spent": {"cost_usd": "Infinity"},
        "updated": 7,
        "created": "yesterday",
    }
    (tmp_path / "odd" / "metadata.json").write_text(json.dumps(odd))
    summary = listed(tmp_path)["odd"]
    assert set(summary[2:-1]) == {None}
    assert summary.fault is not None
    assert summary.fault.startswith("metadata has invalid values: title, project")
    assert summary.updated.startswith("20"), "the time of the folder"
    (tmp_path / "odd" / "metadata.json").write_text('{"title": "\\ud800 x", "prompts": -1}')
    assert listed(tmp_path)["odd"].title == "? x"


def test_the_previous_version_of_metadata_is_read(tmp_path: Path) -> None:
    save(tmp_path, "old")
    (tmp_path / "old" / "metadata.json").write_text('{"schema_version": 1, "turns": 4}')
    assert listed(tmp_path)["old"].prompts == 4


def damage_header(file: Path) -> None:
    file.write_bytes(b"not a database at all" * 100)


def damage_pages(file: Path) -> None:
    size = file.stat().st_size
    with open(file, "r+b") as database:
        database.seek(4096)
        database.write(os.urandom(size - 4096))


def drop_a_table(file: Path) -> None:
    database = sqlite3.connect(file)
    database.execute("DROP TABLE transcripts")
    database.execute("DROP TABLE sessions")
    database.commit()
    database.close()


def of_another_version(file: Path) -> None:
    database = sqlite3.connect(file)
    database.execute("PRAGMA user_version = 77")
    database.close()


@pytest.mark.parametrize("damage", [damage_header, damage_pages, drop_a_table, of_another_version])
def test_a_damaged_index_is_rebuilt_with_a_remark(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    for number in range(30):
        save(tmp_path, f"s{number}", f"text number {number}", title="x" * 500)
    assert found(tmp_path, "number 7") == ["s7"]
    damage(tmp_path / FILE)
    for leftover in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{leftover}").unlink(missing_ok=True)
    answer, remark = ask_index(
        tmp_path, lambda index: (summaries_in(index), index.search("number 7"))
    )
    assert len(answer[0]) == 30
    assert [match.session.id for match in answer[1].matches] == ["s7"]
    assert remark.startswith("the session index has been rebuilt (")
    assert ("another version" in remark) == (damage is of_another_version)
    assert len(listed(tmp_path)) == 30


def test_an_unusable_index_is_replaced_by_memory(tmp_path: Path) -> None:
    save(tmp_path, "one", "some words")
    (tmp_path / FILE).mkdir()
    summaries, remark = ask_index(tmp_path, summaries_in)
    assert [summary.id for summary in summaries] == ["one"]
    assert "cannot be used" in remark
    assert found(tmp_path, "words") == ["one"]


def test_an_index_another_process_holds_is_replaced_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_app.sessions.index._WAIT_SECONDS", 0.05)
    save(tmp_path, "one")
    assert list(listed(tmp_path)) == ["one"]
    save(tmp_path, "two")
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    summaries, remark = ask_index(tmp_path, summaries_in)
    holder.close()
    assert {summary.id for summary in summaries} == {"one", "two"}
    assert "locked" in remark


def test_only_the_owner_can_read_the_index(tmp_path: Path) -> None:
    save(tmp_path, "one", "private words")
    assert found(tmp_path, "private") == ["one"]
    for file in tmp_path.glob(f"{FILE}*"):
        assert file.stat().st_mode & 0o077 == 0
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    assert found(tmp_path, "private") == ["one"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_search_finds_prompts_answers_tools_and_titles(tmp_path: Path) -> None:
    save(tmp_path, "a", "Why does the parser fail?", title="A title about walruses")
    session = SessionStore(tmp_path).open("a")
    call = {"type": "tool_call", "id": "1", "name": "bash", "input": {"command": "pytest -q"}}
    blocks = [{"type": "thinking", "thinking": "hidden thought"}, {"type": "text", "text": "Größe"}]
    session.append({"role": "system", "content": "the instruction"})
    session.append({"role": "assistant", "content": [*blocks, call]})
    session.append({"role": "tool", "tool_call_id": "1", "content": "3 failed"})
    session.close()
    save(tmp_path, "b", "something else")
    assert found(tmp_path, "walruses") == ["a"]
    SessionStore(tmp_path).find("b").rename("About geese")
    assert found(tmp_path, "geese") == ["b"]
    for words in (
        "parser",
        "fai pars",
        "walruses",
        "grosse größe",
        "pytest",
        "3 failed",
        "PARSER why",
    ):
        expected = [] if words == "grosse größe" else ["a"]
        assert found(tmp_path, words) == expected, words
    for words in (
        "instruction",
        "hidden",
        "parser else",
        'quo"te',
        "NOT",
        "a OR b",
        "*",
        "(",
        "x:y",
    ):
        assert found(tmp_path, words) == [], words
    answer, _ = ask_index(tmp_path, lambda index: index.search("parser"))
    assert answer.matches[0].snippet[1] == ("parser", True)
    save(tmp_path, "c", "Count the\n  geese in\nthe picture", title="Count the geese…")
    answer, _ = ask_index(tmp_path, lambda index: index.search("picture"))
    assert "".join(text for text, _ in answer.matches[0].snippet).count("Count") == 1


def test_a_search_sees_what_was_added_and_removed(tmp_path: Path) -> None:
    save(tmp_path, "a", "first")
    save(tmp_path, "b", "first")
    assert sorted(found(tmp_path, "first")) == ["a", "b"]
    session = SessionStore(tmp_path).open("a")
    session.append({"role": "user", "content": "second"})
    session.close()
    (tmp_path / "b" / "transcript.jsonl").write_text("{damaged\n{}\n")
    assert found(tmp_path, "second") == ["a"]
    assert found(tmp_path, "first") == ["a"]


ASK = """
import sys
from pathlib import Path
from amplifier_app.sessions.index import ask_index
root = Path(sys.argv[1])
for _ in range(5):
    answer, remark = ask_index(root, lambda index: (index.page(None, 0).listed, index.search("shared")))
    print(len(answer[0]), len(answer[1].matches), remark)
"""


def test_processes_can_build_one_index_at_the_same_time(tmp_path: Path) -> None:
    for number in range(40):
        save(tmp_path, f"s{number}", "shared words")
    pipe = subprocess.PIPE
    processes = [start_python(ASK, tmp_path, stdout=pipe, text=True) for _ in range(4)]
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output.splitlines() == ["40 40 "] * 5


def test_a_page_folds_sub_sessions_into_the_session_that_spawned_them(tmp_path: Path) -> None:
    # Of those written within the same millisecond, the name decides.
    save(tmp_path, "lead")
    save(tmp_path, "lead-1", parent="lead", agent="reader")
    save(tmp_path, "lead-1-1", parent="lead-1", agent="helper")
    save(tmp_path, "fork", parent="lead")
    save(tmp_path, "orphan", parent="gone", agent="reader")
    save(tmp_path, "ring", parent="ring", agent="odd")
    SessionStore(tmp_path).create("second", project="/q").close()
    page, _ = ask_index(tmp_path, lambda index: index.page("/p", 0))
    assert {one.session.id: one.spawned for one in page.listed} == {
        **{"lead": 2, "fork": 0, "orphan": 0},
        "ring": 0,
    }
    assert (page.total, page.elsewhere) == (4, 1)
    first, _ = ask_index(tmp_path, lambda index: index.page(None, 2))
    assert [one.session.id for one in first.listed] == ["second", "ring"]
    assert (first.total, first.elsewhere) == (5, 0)
    below, _ = ask_index(tmp_path, lambda index: index.list_sub_sessions("lead"))
    assert [one.id for one in below] == ["lead-1", "lead-1-1"]


def test_the_last_session_of_a_project_is_found_behind_many_of_others(tmp_path: Path) -> None:
    SessionStore(tmp_path).create("wanted", project="/q").close()
    os.utime(tmp_path / "wanted" / "transcript.jsonl", (1, 1))
    for number in range(60):
        save(tmp_path, f"s{number}")
    assert SessionStore(tmp_path).latest("/q").id == "wanted"
