"""`amplifier session verify` and `session diff` as their users meet them."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions import verification
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.removal import remove_sessions
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.verification import repair, verify
from tests.app.sessions.killed import Killer
from tests.support.cli import Finished, run_amplifier
from tests.support.thorough import Scale

CALL = {"type": "tool_call", "id": "c1", "name": "bash", "input": {"command": "ls"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "first prompt"},
    {"role": "assistant", "content": [{"type": "text", "text": "Look:"}, CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    {"role": "assistant", "content": "That was it."},
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> SessionStore:
    store = SessionStore(home / "sessions")
    saved = store.create("s", project="/p", plan_yaml="name: x\n", title="T", prompts=1)
    for record in HISTORY:
        saved.append(record)
    saved.close()
    return store


def session(home: Path, *arguments: str) -> Finished:
    return run_amplifier("session", *arguments, home=home)


def test_whole_sessions_have_no_problems(store: SessionStore, home: Path) -> None:
    done = session(home, "verify")
    assert (done.code, done.stdout) == (0, "")
    assert done.stderr == "1 session checked, 0 with problems.\n"


def test_a_damaged_transcript_is_reported_and_repaired(store: SessionStore, home: Path) -> None:
    file = store.root / "s" / "transcript.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:3], b"{damaged\n", *lines[3:]])
    file.write_bytes(damaged)
    done = session(home, "verify", "s")
    assert (done.code, done.stdout) == (6, "s: error: the transcript is damaged at line 4\n")
    assert file.read_bytes() == damaged
    assert session(home, "show", "s").code == 6
    fixed = session(home, "verify", "s", "--repair")
    assert (fixed.code, fixed.stdout) == (0, "s: repaired: the transcript is damaged at line 4\n")
    assert file.read_bytes() == b"".join(lines)
    assert (store.root / "s" / "transcript.jsonl.damaged").read_bytes() == damaged
    store.open("s").close()


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (b"}\n{", b"}{", "0123"),
        (b'{"role":"tool"', b'{"control": "replace", "messages": 3}\n{"role":"tool"', "0123"),
        (b'}\n{"role":"tool"', b'}{"role":"us{"role":"tool"', "0123"),
        (b'{"role":"tool"', bytes(512) + b'{"role":"tool"', "0123"),
        (b'{"role":"user"', b'\xef\xbb\xbf{"role":"user"', "0123"),
        (b"first prompt", b"\xe6irst prompt", "0123"),
        (b"first prompt", b"\x06irst prompt", "0123"),
        (b'"type":"text"', bytes(40), "023"),
        (b'"content":"a.txt"}\n', b'"content":"a.tx', "013"),
    ],
)
def test_a_repair_keeps_each_record_that_can_be_read(
    store: SessionStore, old: bytes, new: bytes, kept: str
) -> None:
    """Line feeds that are missing, NUL bytes, bytes that are no text, and torn records in between."""
    file = store.root / "s" / "transcript.jsonl"
    damaged = file.read_bytes().replace(old, new, 1)
    file.write_bytes(damaged)
    _repair(store.root / "s")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    for record in found:
        if "irst prompt" in record["content"]:
            record["content"] = "first prompt"
    assert found == [HISTORY[int(index)] for index in kept]
    assert (store.root / "s" / "transcript.jsonl.damaged").read_bytes() == damaged


def test_lost_metadata_is_made_from_what_is_left(store: SessionStore, home: Path) -> None:
    store.create("s-0123456789abcdef_reader", project="/p", plan_yaml="x: 1\n").close()
    for name in ("s", "s-0123456789abcdef_reader"):
        (store.root / name / "metadata.json").write_text("[" * 50_000)
    listed = json.loads(session(home, "verify", "--output", "json").stdout)
    assert [one["problems"][0]["problem"] for one in listed] == ["metadata is damaged"] * 2
    assert session(home, "verify", "--repair").code == 0
    found = json.loads((store.root / "s" / "metadata.json").read_text())
    assert (found["title"], found["prompts"], found["repaired"]) == ("first prompt", 1, True)
    child = store.read("s-0123456789abcdef_reader")[0]
    assert (child["parent"], child["agent"]) == ("s", "reader")
    assert len((store.root / "s" / "metadata.json.damaged").read_text()) == 50_000
    assert session(home, "verify").stderr == "2 sessions checked, 0 with problems.\n"


@pytest.mark.parametrize(
    ("name", "content", "code", "problem"),
    [
        ("plan.yaml", "name: [x\n", 0, "s: warning: the plan is damaged at line 2"),
        ("transcript.jsonl", "\x00\ufffd{", 6, "the last record of the transcript is incomplete"),
    ],
)
def test_a_session_that_cannot_be_resumed_is_reported(
    store: SessionStore, home: Path, name: str, content: str, code: int, problem: str
) -> None:
    (store.root / "s" / name).write_text(content)
    done = session(home, "verify", "s")
    assert (done.code, problem in done.stdout) == (code, True), done.stdout
    resumed = run_amplifier("run", "--resume", "s", "go", home=home)
    assert resumed.code in (6, 78)
    if name == "plan.yaml":
        hint = "another plan: --plan FILE or --profile NAME"
        assert hint in done.stdout
        assert hint in resumed.stderr
        again = run_amplifier("run", "--resume", "s", "go", "--profile", "mock", home=home)
        assert again.code == 0, again.stderr


def test_no_command_waits_for_a_pipe_in_place_of_a_file(store: SessionStore, home: Path) -> None:
    for name in ("metadata.json", "transcript.jsonl", "plan.yaml", "events.jsonl"):
        (store.root / "s" / name).unlink(missing_ok=True)
        os.mkfifo(store.root / "s" / name)
    (store.root / "s" / "events.jsonl.1x").write_text("")
    done = session(home, "list", "--all")
    assert done.code == 0
    assert "metadata is unreadable: it is not a regular file" in done.stdout
    for command in ("show", "cost", "replay", "fork", "verify", "export"):
        code = session(home, command, "s").code
        assert code == 6, command
    assert session(home, "search", "prompt").code == 1


def test_what_cannot_be_repaired_has_a_hint(store: SessionStore, home: Path) -> None:
    (store.root / "s" / "transcript.jsonl").write_bytes(b"")
    (store.root / "s" / "plan.yaml").unlink()
    store.create("tomorrow", project="/p", plan_yaml="x: 1\n").close()
    (store.root / "tomorrow" / "metadata.json").write_text('{"schema_version": 99}')
    done = session(home, "verify", "--repair")
    assert done.code == 6
    assert done.stdout.splitlines() == [
        "s: error: the transcript is missing or empty",
        "  Restore it, or remove the session: amplifier session delete s",
        "s: warning: the plan is missing or empty",
        "  Resume it with another plan: --plan FILE or --profile NAME",
        "tomorrow: error: unsupported schema version 99",
        "  Use the version of Amplifier that wrote it.",
    ]


def test_other_users_are_locked_out_by_a_repair(store: SessionStore, home: Path) -> None:
    (store.root / "s" / "plan.yaml").chmod(0o644)
    assert "warning: other users can read it" in session(home, "verify").stdout
    assert session(home, "verify", "--repair").code == 0
    assert (store.root / "s" / "plan.yaml").stat().st_mode & 0o777 == 0o600


def test_a_session_in_use_is_not_repaired(store: SessionStore, home: Path) -> None:
    (store.root / "s" / "plan.yaml").chmod(0o644)
    held = store.open("s")
    done = session(home, "verify", "--repair")
    held.close()
    assert "not repaired: session s is in use" in done.stderr
    assert (store.root / "s" / "plan.yaml").stat().st_mode & 0o777 == 0o644


def _repair(path: Path) -> None:
    repair(path, verify(path))


def test_a_killed_repair_loses_nothing(store: SessionStore, scale: Scale) -> None:
    path = store.root / "s"
    good = (path / "transcript.jsonl").read_bytes()
    kill = Killer()
    for number in range(scale(12, 40)):
        damaged = b"{damaged %d\n" % number + good
        (path / "transcript.jsonl").write_bytes(damaged)
        (path / "metadata.json").write_text(f"[{number}")
        kill(lambda: _repair(path))
        now = (path / "transcript.jsonl").read_bytes()
        assert now in (good, damaged)
        if now == good:
            kept = [one.read_bytes() for one in path.glob("transcript.jsonl.damaged*")]
            assert damaged in kept
        if not verify(path):
            assert json.loads((path / "metadata.json").read_text())["prompts"] == 1
        for leftover in path.glob("*.damaged*"):
            leftover.unlink()


def test_a_diff_shows_where_two_sessions_part(store: SessionStore, home: Path) -> None:
    fork = fork_session(store, store.find("s"), step=1)
    assert session(home, "diff", "s", "s").code == 0
    opened = SessionFolder(fork.path).open()
    opened.append({"role": "assistant", "content": "Something \x1b[31melse."})
    opened.append({"role": "user", "content": "And now?"})
    opened.close()
    (fork.path / "plan.yaml").write_text("name: y\n")
    done = session(home, "diff", "s", fork.id)
    assert done.code == 1
    assert done.stdout.splitlines() == [
        "The sessions begin with the same 2 messages and part after step 1.",
        "",
        "--- s/plan.yaml",
        f"+++ {fork.id}/plan.yaml",
        "@@ -1 +1 @@",
        "-name: x",
        "+name: y",
        "",
        "--- s",
        f"+++ {fork.id}",
        "@@ -1,2 +1,4 @@",
        "-That was it.",
        "+Something else.",
        " ",
        "+› And now?",
        "+",
    ]
    data = json.loads(session(home, "diff", "s", fork.id, "--output", "json").stdout)
    assert (data["same"], data["last_common_step"], data["same_plan"]) == (False, 1, False)
    assert data["only_a"] == [{"kind": "answer", "text": "That was it."}]


def test_ids_and_usage_make_no_difference(store: SessionStore, home: Path) -> None:
    saved = store.create("other", project="/p", plan_yaml="name: x\n")
    for record in HISTORY:
        text = json.dumps(record).replace("c1", "another-id")
        saved.append({**json.loads(text), "metadata": {"usage": {"input_tokens": 5}}})
    saved.close()
    done = session(home, "diff", "s", "other")
    assert (done.code, done.stdout) == (0, "s and other are the same.\n")


@pytest.mark.parametrize("left", ["", "lock plan.yaml transcript.jsonl"])
def test_what_a_killed_creation_left_is_removed(store: SessionStore, home: Path, left: str) -> None:
    folder = store.root / "new"
    folder.mkdir(mode=0o700)
    for name in left.split():
        (folder / name).touch(mode=0o600)
    done = session(home, "verify")
    problem = "new: warning: its creation was interrupted, and nothing was saved in it\n"
    assert (done.code, done.stdout) == (0, problem)
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert session(home, "verify", "--repair").stdout == ""
    assert folder.exists()
    assert session(home, "verify", "--repair").code == 0
    assert not folder.exists()


def test_a_session_that_is_removed_while_it_is_checked_has_no_problems(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("_metadata", "_transcript", "_plan", "_permissions"):
        SessionStore(store.root).create(function[1:], project="/p", plan_yaml="name: x\n").close()
        check = getattr(verification, function)

        def remove(path: Path, check: Callable[[Path], object] = check) -> object:
            remove_sessions(path.parent, [path.name])
            return check(path)

        monkeypatch.setattr(verification, function, remove)
        assert verify(store.root / function[1:]) == []
        monkeypatch.undo()
