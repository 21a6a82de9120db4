"""`amplifier session` as its users meet it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.support.cli import Finished, amplifier_command, child_environment, run_amplifier
from tests.support.terminal import Terminal

CALL = {"type": "tool_call", "id": "1", "name": "bash", "input": {"command": "ls"}}
FUNCTION = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    store = SessionStore(tmp_path / "home" / "sessions")
    saved = store.create(
        "20260101-000000-abcdef",
        project="/p/one",
        title="Title [bold]x[/bold]",
        prompts=1,
        usage={"total_tokens": 1500},
        spent={"cost_usd": "0.25", "unpriced": 0},
        model="some-model",
    )
    saved.append({"role": "system", "content": "the instruction"})
    saved.append({"role": "user", "content": "hello \x1b[31mred\x07"})
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Look:"}, CALL]
    saved.append({"role": "assistant", "content": blocks, "tool_calls": [FUNCTION]})
    saved.append({"role": "tool", "tool_call_id": "1", "content": "a.txt\nb.txt\x1b[0m"})
    only_calls = {"id": "2", "function": {"name": "grep", "arguments": '{"a": 1}'}}
    saved.append({"role": "assistant", "content": None, "tool_calls": [only_calls]})
    result = {"type": "tool_result", "tool_call_id": "2", "output": {"n": 1}}
    saved.append({"role": "function", "content": [result, {"type": "image", "source": {}}]})
    saved.append({"role": "assistant", "content": "Two `files`."})
    saved.append({"role": "user", "content": "And\nnow?"})
    saved.close()
    store.create("20260102-000000-123456", project="/p/two").close()
    return tmp_path / "home"


def session(home: Path, *arguments: str, cwd: Path | None = None) -> Finished:
    return run_amplifier("session", *arguments, home=home, cwd=cwd)


def test_sessions_are_listed_with_the_last_one_first(home: Path) -> None:
    done = session(home, "list", "--all")
    lines = done.stdout.splitlines()
    assert (done.code, done.stderr) == (0, "")
    assert lines[0].split() == ["ID", "UPDATED", "PROMPTS", "COST", "TITLE", "DIRECTORY", "MODEL"]
    assert [line.split()[0] for line in lines[1:]] == [
        "20260102-000000-123456",
        "20260101-000000-abcdef",
    ]
    assert lines[2].split()[2:] == [
        *("1", "$0.2500", "Title", "[bold]x[/bold]", "/p/one", "some-model"),
    ]


def test_a_list_has_the_sessions_of_this_directory(home: Path, tmp_path: Path) -> None:
    store = SessionStore(home / "sessions")
    store.create("here", project=str(tmp_path), title="Here").close()
    done = session(home, "list", cwd=tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ID", "here"]
    assert done.stderr == "2 in other directories: --all\n"
    of_project = session(home, "list", "--project", "/p/one", "--output", "json")
    assert [entry["id"] for entry in json.loads(of_project.stdout)] == ["20260101-000000-abcdef"]
    empty = session(home, "list", "--project", "/p/none")
    assert "No saved sessions in /p/none." in empty.stderr
    both = session(home, "list", "--project", "/p/one", "--all")
    assert (both.code, both.stdout) == (2, "")


def test_a_list_on_a_terminal_fits_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = SessionStore(home / "sessions")
    for number in range(25):
        title = f"Number {number}: a title that is longer than what a terminal of 80 columns has"
        session_id = f"20260101-000000-{number:06x}"
        facts: dict[str, Any] = {"title": title, "prompts": 3, "model": "claude-sonnet-5-5"}
        store.create(session_id, project=str(tmp_path), **facts).close()
    agent = store.create("20260101-000000-000018-0123456789abcdef_r", project=str(tmp_path),
                         parent="20260101-000000-000018", agent="reader")  # fmt: skip
    agent.close()
    with Terminal("session", "list", home=home, cwd=tmp_path) as terminal:
        terminal.process.setwinsize(30, 80)
        assert terminal.finish() == 0
    lines = terminal.shown.splitlines()
    assert lines[0].split() == ["ID", "AGE", "PROMPTS", "COST", "AGENTS", "TITLE"]
    assert len(lines) == 22
    assert lines[1].startswith("000018  just now        3")
    assert "+1" in lines[1]
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "5 more: -n 0"


def test_lists_can_be_read_by_programs(home: Path) -> None:
    store = SessionStore(home / "sessions")
    store.create("x", project="/p", parent="20260102-000000-123456", agent="reader").close()
    listed = json.loads(session(home, "list", "--all", "--output", "json").stdout)
    assert [entry["id"] for entry in listed] == ["20260102-000000-123456", "20260101-000000-abcdef"]
    assert [entry["id"] for entry in listed[0]["sub_sessions"]] == ["x"]
    assert (listed[1]["prompts"], listed[1]["cost_usd"]) == (1, "0.25")
    one = json.loads(session(home, "list", "-a", "-n", "1", "--output", "json").stdout)
    assert len(one) == 1


def test_an_empty_list_is_reported_on_stderr(tmp_path: Path) -> None:
    done = session(tmp_path / "empty", "list")
    assert (done.code, done.stdout) == (0, "")
    assert done.stderr == "No saved sessions in this directory.\n"
    assert session(tmp_path / "empty", "list", "--output", "json").stdout == "[]\n"


def test_a_conversation_is_shown_as_markdown_in_a_pipe(home: Path) -> None:
    done = session(home, "show", "abcdef")
    assert done.code == 0
    facts, conversation = done.stdout.split("\n\n", 2)[1:]
    assert facts.startswith(
        "20260101-000000-abcdef · 2 prompts · 3 steps · 1.5k tokens · $0.2500 · some-model · /p/one"
    )
    assert conversation == (
        "## › hello red\n\n"
        "> hm\n\n"
        "Look:\n\n"
        "- `1 bash ls · 2 lines`\n"
        '- `2 grep {"a": 1} · {"n": 1}`\n\n'
        "Two `files`.\n\n"
        "## ›\n\n"
        "And\nnow?\n"
    )
    last = session(home, "show", "abcdef", "--last", "1").stdout
    assert last.endswith("[/bold]\n\n" + facts + "\n\n## ›\n\nAnd\nnow?\n")
    unfolded = session(home, "show", "abcdef", "--show", "internal").stdout
    assert "> system prompt:\n> the instruction\n" in unfolded


def test_one_tool_call_is_shown_whole(home: Path) -> None:
    done = session(home, "show", "abcdef", "--call", "1")
    assert done.stdout == "1 bash\n\ncommand: ls\n\nresult:\na.txt\nb.txt\n"
    call = json.loads(session(home, "show", "abcdef", "--call", "2", "--output", "json").stdout)
    assert (call["number"], call["name"], call["result"]) == (2, "grep", '{"n": 1}')
    missing = session(home, "show", "abcdef", "--call", "3")
    assert (missing.code, missing.stdout) == (2, "")
    assert "no tool call 3; it has 2" in missing.stderr


def test_a_conversation_on_a_terminal_goes_through_the_pager(home: Path, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "PAGER $LESS"\nsed "s/^/| /"\n')
    pager.chmod(0o755)
    environment = {"AMPLIFIER_PAGER": str(pager), "NO_COLOR": None}
    with Terminal("session", "show", "abcdef", home=home, env=environment) as terminal:
        assert terminal.finish() == 0
    assert "PAGER FRX" in terminal.shown
    assert "| Title [bold]x[/bold]" in terminal.shown
    assert "| › hello red" in terminal.shown
    assert "|    1 bash ls · 2 lines" in terminal.shown
    assert "\x1b[1m" in terminal.raw
    plain = ("session", "show", "abcdef", "--no-pager")
    with Terminal(*plain, home=home, env=environment) as terminal:
        assert terminal.finish() == 0
    assert "PAGER" not in terminal.shown
    assert "› hello red" in terminal.shown


def test_a_conversation_as_data_is_what_was_saved(home: Path) -> None:
    shown = json.loads(session(home, "show", "abcdef", "--output", "json").stdout)
    assert shown["metadata"]["project"] == "/p/one"
    assert shown["messages"][1]["content"] == "hello \x1b[31mred\x07"


@pytest.mark.parametrize("name", ["nope", "2026", "../x"])
def test_an_id_of_no_session_or_of_several_exits_with_6(home: Path, name: str) -> None:
    done = session(home, "show", name)
    assert (done.code, done.stdout) == (6, "")
    assert done.stderr.startswith("amplifier: ")
    if name == "2026":
        assert "'2026' matches 2 sessions, for example 20260101-000000-abcdef, 2026" in done.stderr


def test_sub_sessions_are_named_with_the_session_that_spawned_them(home: Path) -> None:
    store = SessionStore(home / "sessions")
    parent = "20260101-000000-abcdef"
    store.create("child", project="/p", parent=parent, agent="reader", title="Look").close()
    store.create("deeper", project="/p", parent="child", agent="helper").close()
    shown = session(home, "show", "abcdef").stdout
    assert "sub-session child (reader: Look)\n\nsub-session deeper (helper: (no title))" in shown
    data = json.loads(session(home, "show", "abcdef", "--output", "json").stdout)
    assert data["sub_sessions"] == ["child"]


def test_the_cost_of_a_session_without_model_calls_is_explained(home: Path) -> None:
    done = session(home, "cost", "123456")
    assert (done.code, done.stdout) == (0, "")
    assert done.stderr == "session 20260102-000000-123456 has made no model calls\n"


@pytest.mark.parametrize("command", ["show", "diff", "delete"])
def test_a_missing_session_names_the_list(command: str, tmp_path: Path) -> None:
    done = session(tmp_path, command)
    assert (done.code, done.stdout) == (2, "")
    assert "'amplifier session list'" in done.stderr


def test_a_search_prints_the_part_that_matches(home: Path) -> None:
    done = session(home, "search", "hello", "fil")
    assert done.code == 0
    assert done.stdout.startswith("20260101-000000-abcdef: ")
    assert "\x1b" not in done.stdout
    found = json.loads(session(home, "search", "hello", "--output", "json").stdout)
    assert [one["id"] for one in found] == ["20260101-000000-abcdef"]
    assert "hello" in found[0]["snippet"]
    nothing = session(home, "search", "walrus")
    assert (nothing.code, nothing.stdout) == (1, "")
    assert nothing.stderr == "no session contains 'walrus'\n"


def test_a_session_is_renamed_unless_it_is_in_use(home: Path) -> None:
    done = session(home, "rename", "abcdef", "Another", "title")
    assert (done.code, done.stdout) == (0, 'Renamed 20260101-000000-abcdef to "Another title".\n')
    assert SessionStore(home / "sessions").read("abcdef")[0]["title"] == "Another title"
    held = SessionStore(home / "sessions").open("abcdef")
    assert session(home, "rename", "abcdef", "Third").code == 6
    held.close()
    (home / "sessions" / "20260101-000000-abcdef" / "metadata.json").write_text("{damaged")
    assert "metadata is damaged" in session(home, "rename", "abcdef", "Third").stderr


def test_deleting_takes_sub_sessions_and_nothing_else(home: Path, tmp_path: Path) -> None:
    store = SessionStore(home / "sessions")
    parent = "20260101-000000-abcdef"
    store.create("child", project="/p", parent=parent, agent="reader").close()
    store.create("deeper", project="/p", parent="child", agent="helper").close()
    store.create("fork", project="/p", parent=parent).close()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("kept")
    backups = home / "sessions" / parent / "backups"
    backups.mkdir()
    (backups / "link").symlink_to(outside)
    refused = session(home, "delete", "abcdef")
    assert refused.code == 2
    assert "Pass --yes" in refused.stderr
    assert session(home, "search", "hello").code == 0
    done = session(home, "delete", "abcdef", "--yes")
    assert (done.code, done.stdout) == (0, "Deleted 3 sessions.\n")
    left = sorted(path.name for path in (home / "sessions").iterdir() if path.is_dir())
    assert left == ["20260102-000000-123456", "fork"]
    assert (outside / "kept.txt").read_text() == "kept"
    assert session(home, "search", "hello").code == 1
    assert b"hello" not in b"".join(f.read_bytes() for f in (home / "sessions").glob(".index*"))


def test_a_deletion_is_confirmed_on_a_terminal(home: Path) -> None:
    for answer, left in (("n", True), ("y", False)):
        with Terminal("session", "delete", "123456", home=home) as terminal:
            terminal.until(r"Delete 1 session\? \[y/N\]")
            terminal.type(f"{answer}\r")
            assert terminal.finish() == 0
        assert (home / "sessions" / "20260102-000000-123456").exists() is left


def test_a_session_in_use_is_not_deleted_with_any_other(home: Path) -> None:
    store = SessionStore(home / "sessions")
    store.create("child", project="/p", parent="20260101-000000-abcdef", agent="reader").close()
    held = store.open("child")
    done = session(home, "delete", "abcdef", "123456", "--yes")
    renamed = session(home, "rename", "child", "Another title")
    held.close()
    for refused in (done, renamed):
        assert refused.code == 6
        assert refused.stderr.splitlines()[-2:] == [
            f"amplifier: session child is in use (process {os.getpid()})",
            "  Stop that process first.",
        ]
    assert (home / "sessions" / "20260101-000000-abcdef").exists()
    assert (home / "sessions" / "20260102-000000-123456").exists()


def create_old(store: SessionStore, name: str, day: int = 1) -> None:
    """A session that was last used in January 2025."""
    store.create(name, project="/p", title=name).close()
    file = store.root / name / "metadata.json"
    changed = {**json.loads(file.read_text()), "updated": f"2025-01-0{day}T00:00:00+00:00"}
    file.write_text(json.dumps(changed))


def test_pruning_keeps_new_locked_and_damaged_sessions(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = SessionStore(home / "sessions")
    for name, day in (("old", 1), ("older", 2), ("used", 3), ("broken", 4)):
        create_old(store, name, day)
    store.create("old-child", project="/p", parent="old", agent="reader").close()
    store.create("new", project="/p").close()
    (home / "sessions" / "broken" / "metadata.json").write_text("[")
    assert session(home, "prune").code == 2
    held = store.open("used")
    listed = session(home, "prune", "--older", "30d", "--dry-run", "--output", "json")
    assert [one["deletes"] for one in json.loads(listed.stdout)] == [["used"], ["older"]]
    assert "Would delete 2 sessions" in listed.stderr
    done = session(home, "prune", "--older", "30d", "--yes")
    held.close()
    assert "skipped used" in done.stderr
    assert "Deleted 1 session." in done.stderr
    assert session(home, "prune", "--keep", "2", "--yes").code == 0
    left = sorted(path.name for path in (home / "sessions").iterdir() if path.is_dir())
    assert left == ["broken", "new", "old", "old-child"], "its sub-session was used just now"


def test_a_removed_directory_is_named_as_the_problem(home: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    listing = f"rmdir {gone} && exec {' '.join(amplifier_command())} session list"
    environment = child_environment(home)
    done = subprocess.run(
        ["sh", "-c", listing], cwd=gone, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (78, "")
    assert "the current directory no longer exists" in done.stderr


def test_pruning_keeps_a_session_used_while_the_question_was_open(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = SessionStore(home / "sessions")
    for name in ("old", "resumed"):
        create_old(store, name)
    with Terminal("session", "prune", "--older", "30d", cwd=tmp_path, home=home) as terminal:
        terminal.until(r"Delete 2 sessions")
        saved = store.open("resumed")
        saved.update(prompts=1)
        saved.append({"role": "user", "content": "x"})
        saved.close()
        terminal.type("y\r")
        terminal.until("Deleted 1 session")
        assert terminal.finish() == 0
    assert store.get("resumed")
    assert not store.get("old")
