"""A run that is interrupted at any of its steps keeps a valid conversation and can be resumed."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.conditions import Conditions
from tests.support.kill_points import Steps
from tests.support.plans import BLOCKING_TOOL, mock_plan, module_folder
from tests.support.processes import processes_in
from tests.support.thorough import Scale
from tests.support.waiting import wait_until
from tests.support.warm_interpreter import is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="needs the warm interpreter")

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
TOOLS = [{"module": "tool-bash"}, {"module": "tool-filesystem"}]


def plan_with(folder: Path, calls: int) -> Path:
    """A plan whose model makes so many calls at once, then one more, and ends."""
    many = [
        {"name": "bash", "id": f"a{n}", "input": {"command": f"sleep 0.0{n}; seq {n}000"}}
        for n in range(calls)
    ]
    one = {"name": "write_file", "id": "b", "input": {"file_path": "b.txt", "content": "b"}}
    return mock_plan(folder, [{"tool_calls": many}, {"tool_calls": [one]}, "done"], tools=TOOLS)


def messages(session_id: str = "s") -> list[dict[str, Any]]:
    return SessionStore().read(session_id)[1]


def assert_whole(found: list[dict[str, Any]]) -> None:
    """Each call has one result, which comes before anything else is said."""
    waiting: set[str] = set()
    for message in found:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        if message["role"] == "assistant" and isinstance(message["content"], list):
            blocks = message["content"]
            waiting = {block["id"] for block in blocks if block["type"] == "tool_call"}
    assert not waiting


def assert_resumable(folder: Path) -> None:
    plan = mock_plan(folder, ["back"], name="next.yaml")
    done = run_amplifier("run", "-f", plan, "--resume", "s", "go on")
    assert (done.code, done.stdout) == (0, "back\n"), done.stderr
    assert_whole(messages())


def test_a_run_interrupted_at_any_step_can_be_resumed(tmp_path: Path, scale: Scale) -> None:
    """3 interrupts by default and 50 in a thorough run, at random steps, with 1 to 8 parallel calls."""
    interrupted = 0
    for number in range(scale(3, 50)):
        chance = random.Random(number)
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = plan_with(folder, number % 8 + 1)
        by = chance.choice(list(CODES))
        run_amplifier("session", "delete", "s", "--yes")
        at = chance.randint(1, 60 + 8 * (number % 8))
        steps = Steps(folder / "steps")
        conditions = Conditions(steps=str(steps.file), kill_at=at, kill_by=by)
        done = run_amplifier(
            *("run", "-f", plan, "go", "--session", "s"), cwd=folder, conditions=conditions
        )
        check(done, by, folder, f"interrupt {number} by {by.name} at step {at}")
        interrupted += done.code != 0
    assert interrupted


def check(done: Finished, by: signal.Signals, folder: Path, about: str) -> None:
    assert "Traceback" not in done.stderr, about
    # Past its last step, or so late that the answer was complete.
    assert done.code in (CODES[by], 0), (about, done)
    wait_until(lambda: not processes_in(folder), 2, about=lambda: f"{about}: processes are left")
    listed = json.loads(run_amplifier("session", "list", "--all", "--output", "json").stdout)
    if not [one for one in listed if one["id"] == "s"]:
        assert "--resume" not in done.stderr, f"{about}: it was not saved"
        return
    assert_whole(messages())
    assert_resumable(folder)


@pytest.mark.parametrize(
    "by", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_an_interrupt_during_compaction_leaves_the_conversation_as_it_was(
    tmp_path: Path, by: signal.Signals
) -> None:
    """While the model writes the summary, which has not replaced anything yet."""
    config = {"strategy": "summarize", "keep_recent_turns": 1}
    session = {
        "orchestrator": "loop-streaming",
        "context": {"module": "context-simple", "config": config},
    }
    hooks, mock = [{"module": "hooks-logging"}], {"context_window": 6000}
    more: dict[str, Any] = {"session": session, "hooks": hooks, "mock": mock}
    plan = mock_plan(tmp_path, ["first", "second"], **more)
    for words in ("--session", "--resume"):
        succeed("run", "-f", plan, "word " * 2000, words, "s", "--output", "json")
    before = messages()
    events = Path(os.environ["AMPLIFIER_HOME"]) / "sessions" / "s" / "events.jsonl"
    known = events.read_text().count("context:summary")
    slow = mock_plan(tmp_path, [{"text": "summary", "delay": 60}], name="slow.yaml", **more)
    process = start_amplifier("run", "-f", slow, "word " * 2000, "--resume", "s")
    wait_until(lambda: events.read_text().count("context:summary") > known, process=process)
    process.send_signal(by)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == CODES[by], stderr.decode()
    assert b"Traceback" not in stderr
    after = messages()
    assert after[: len(before)] == before
    assert [message["role"] for message in after[len(before) :]] == ["user"]
    assert_resumable(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "code"), [("--timeout", 7), ("SIGTERM", 143)])
def test_a_tool_that_blocks_the_program_is_ended_with_the_run(
    tmp_path: Path, how: str, code: int
) -> None:
    tool = {"module": "tool-block", "source": str(module_folder(tmp_path, BLOCKING_TOOL))}
    plan = mock_plan(tmp_path, [{"tool_calls": [{"name": "block", "input": {}}]}], tools=[tool])
    limit = ("--timeout", "3s") if how == "--timeout" else ()
    process = start_amplifier(
        *("run", "-f", plan, "--session", "s", "--output", "json", *limit, "go"), cwd=tmp_path
    )
    wait_until((tmp_path / "begun").exists)
    if not limit:
        process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate()
    result = json.loads(stdout)
    assert process.returncode == result["exit_code"] == code
    assert [(call["name"], call["outcome"]) for call in result["tools"]] == [("block", "error")]
    assert result["error"]["hint"].startswith("Resume with: amplifier run --resume s")
    assert_resumable(tmp_path)
