"""`amplifier session` as its users meet it."""

import json
from pathlib import Path

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.support.cli import Finished, run_amplifier


@pytest.fixture
def home(tmp_path: Path) -> Path:
    store = SessionStore(tmp_path / "home" / "sessions")
    saved = store.create(
        "20260101-first", project="/p/one", title="Title [bold]x[/bold]", prompts=1
    )
    saved.append({"role": "user", "content": "hello \x1b[31mred\x07"})
    call = {"type": "tool_call", "id": "1", "name": "bash", "input": {"command": "ls"}}
    function = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Look:"}, call]
    saved.append({"role": "assistant", "content": blocks, "tool_calls": [function]})
    saved.append({"role": "tool", "tool_call_id": "1", "content": "a.txt"})
    only_calls = {"id": "2", "function": {"name": "grep", "arguments": '{"a": 1}'}}
    saved.append({"role": "assistant", "content": None, "tool_calls": [only_calls]})
    result = {"type": "tool_result", "tool_call_id": "2", "output": {"n": 1}}
    saved.append({"role": "function", "content": [result, {"type": "image", "source": {}}]})
    saved.close()
    store.create("20260102-second", project="/p/two").close()
    return tmp_path / "home"


def session(home: Path, *arguments: str) -> Finished:
    return run_amplifier("session", *arguments, home=home)


def test_sessions_are_listed_with_the_last_one_first(home: Path) -> None:
    done = session(home, "list")
    lines = done.stdout.splitlines()
    assert done.code == 0
    assert lines[0].split() == ["SESSION", "UPDATED", "PROMPTS", "PROJECT", "TITLE"]
    assert [line.split()[0] for line in lines[1:]] == ["20260102-second", "20260101-first"]
    assert lines[2].endswith("Title [bold]x[/bold]")


def test_lists_can_be_narrowed_and_read_by_programs(home: Path) -> None:
    listed = json.loads(session(home, "list", "--output", "json").stdout)
    assert [entry["id"] for entry in listed] == ["20260102-second", "20260101-first"]
    assert listed[1]["prompts"] == 1
    one = json.loads(session(home, "list", "-n", "1", "--output", "json").stdout)
    assert len(one) == 1
    of_project = session(home, "list", "--project", "/p/one", "--output", "json")
    assert [entry["id"] for entry in json.loads(of_project.stdout)] == ["20260101-first"]


def test_no_sessions_are_said_on_stderr(tmp_path: Path) -> None:
    done = session(tmp_path / "empty", "list")
    assert (done.code, done.stdout, done.stderr) == (0, "", "No saved sessions.\n")
    assert session(tmp_path / "empty", "list", "--output", "json").stdout == "[]\n"


def test_a_conversation_is_shown_without_what_commands_a_terminal(home: Path) -> None:
    done = session(home, "show", "20260101")
    assert done.code == 0
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    conversation = done.stdout.split("\n\n", 1)[1]
    assert conversation.splitlines() == [
        "[user]",
        "hello red",
        "",
        "[assistant]",
        "  (thinking) hm",
        "Look:",
        '→ bash {"command": "ls"}',
        "",
        "[tool]",
        "a.txt",
        "",
        "[assistant]",
        '→ grep {"a": 1}',
        "",
        "[function]",
        '{"n": 1}',
        "(image)",
    ]


def test_a_conversation_as_data_is_what_was_saved(home: Path) -> None:
    shown = json.loads(session(home, "show", "20260101-first", "--output", "json").stdout)
    assert shown["metadata"]["project"] == "/p/one"
    assert shown["messages"][0]["content"] == "hello \x1b[31mred\x07"


@pytest.mark.parametrize("name", ["nope", "2026", "../x"])
def test_what_is_not_one_session_exits_with_6(home: Path, name: str) -> None:
    done = session(home, "show", name)
    assert (done.code, done.stdout) == (6, "")
    assert done.stderr.startswith("amplifier: ")


def test_sub_sessions_stand_below_the_session_that_spawned_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = SessionStore(home / "sessions")

    def create(session_id: str, **metadata: object) -> None:
        store.create(session_id, project="/p", **metadata).close()

    create("a-one", parent="a", agent="reader", title="Look")
    create("a", title="Lead")
    create("b")
    create("a-one-two", parent="a-one", agent="helper")
    create("lost", parent="gone", agent="reader", title="Alone")
    lines = session(home, "list").stdout.splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == [
        "└ lost",
        "b",
        "a",
        "└ a-one",
        "└ a-one-two",
    ]
    assert lines[3].endswith("reader: Look")
    listed = json.loads(session(home, "list", "--output", "json").stdout)
    assert [(one["id"], one["parent"], one["agent"]) for one in listed[2:4]] == [
        ("a", None, None),
        ("a-one", "a", "reader"),
    ]
    of_two = json.loads(session(home, "list", "-n", "3", "--output", "json").stdout)
    assert [one["id"] for one in of_two] == ["lost", "b", "a", "a-one", "a-one-two"]
    assert "sub-session: a-one (reader)" in session(home, "show", "a").stdout
    assert json.loads(session(home, "show", "a", "--output", "json").stdout)["sub_sessions"] == [
        "a-one"
    ]
