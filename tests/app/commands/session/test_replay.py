"""`amplifier session replay` as its users meet it."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from amplifier_app.commands.session.replaying import moments
from amplifier_app.sessions.store import SessionStore
from tests.support.cli import run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.screen import Emulator
from tests.support.terminal import Terminal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    read = Reply("Let me look.", [ToolCall("read_file", {"path": "a.txt"})])
    with ScriptedLLM.running([read, "It has **two** lines.", "Yes."]) as server:
        for prompt in ("Read a.txt", "Sure?"):
            done = succeed("run", "--session", "s", prompt, cwd=tmp_path, env=server.env)
    return done.home


def test_a_session_is_shown_as_it_ran(home: Path) -> None:
    with Terminal("session", "replay", "s", "--speed", "50", home=home) as terminal:
        assert terminal.finish() == 0
    emulator = Emulator(100, 60)
    emulator.feed(terminal.raw)
    lines = [line for line in emulator.visible() if line]
    assert lines[0] == "› Read a.txt"
    assert "Let me look." in lines
    assert any(line.startswith("✓ 1 read_file a.txt") for line in lines)
    assert "It has two lines." in lines
    assert lines.index("› Sure?") > lines.index("It has two lines.")
    assert "Yes." in lines
    assert sum("1 step" in line or "2 steps" in line for line in lines) == 2


def test_replayed_prompts_show_their_recorded_duration(home: Path) -> None:
    log = home / "sessions" / "s" / "events.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    later = datetime.fromisoformat(records[0]["ts"]) + timedelta(seconds=75)
    ends = next(n for n, one in enumerate(records) if one["event"] == "orchestrator:complete")
    for record in records[ends:]:
        record["ts"] = later.isoformat()
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    done = succeed("session", "replay", "s", "--speed", "0", home=home)
    assert "2 steps · 1 min 15 s" in done.stdout + done.stderr


def test_a_pipe_gets_lines_without_colours(home: Path) -> None:
    done = succeed("session", "replay", "s", "--speed", "0", home=home)
    assert "\x1b" not in done.stdout
    assert "It has **two** lines." in done.stdout


def test_a_session_without_a_log_cannot_be_replayed(tmp_path: Path) -> None:
    SessionStore(tmp_path / "home" / "sessions").create("s", project="/p").close()
    done = run_amplifier("session", "replay", "s", home=tmp_path / "home")
    assert (done.code, done.stdout) == (6, "")
    assert "has no log of what happened" in done.stderr
    wrong = run_amplifier("session", "replay", "s", "--speed", "-1", home=tmp_path / "home")
    assert wrong.code == 2


def test_pauses_are_those_of_the_log_but_not_longer_than_some_seconds() -> None:
    def event(second: int, name: str, **data: object) -> dict[str, object]:
        return {"ts": f"2026-01-01T00:00:{second:02}+00:00", "event": name, "data": data}

    block = {"type": "text", "text": "x" * 30}
    log = [
        event(0, "prompt:submit"),
        event(2, "content_block:end", block=block, block_type="text"),
        {"ts": "damaged", "event": "odd", "data": {}},
        event(50, "prompt:submit"),
    ]
    found = list(moments(json.loads(json.dumps(log))))
    assert [one.event for one in found] == [
        "prompt:submit",
        *["content_block:delta"] * 3,
        "content_block:end",
        "prompt:submit",
    ]
    assert sum(one.wait for one in found[1:5]) == pytest.approx(2)
    assert found[-1].wait == 3
    assert "".join(str(one.data["delta"]) for one in found[1:4]) == "x" * 30
