"""The main job: a prompt that needs tools, on a real process, a strict server and real files."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import small_plan
from tests.support.cli import run_amplifier, start_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, Stall, Status, ToolCall


def anthropic(server: ScriptedLLM) -> dict[str, str | None]:
    return {"ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": server.base_url}


def openai(server: ScriptedLLM) -> dict[str, str | None]:
    return {"OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": server.openai_base_url}


def task(thinking: str | None = None) -> list[Any]:
    """Three tool calls in two rounds, the second of which changes a file; then the answer."""
    change = {"path": "notes.txt", "old_string": "teh", "new_string": "the"}
    return [
        Reply(
            "Let me look.",
            [
                ToolCall("read_file", {"path": "notes.txt"}),
                ToolCall("list_directory", {"path": "."}),
            ],
            thinking,
        ),
        Reply("Now I change it.", [ToolCall("edit_file", change)]),
        "Fixed the typo.",
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("this is teh text\n")
    return folder


@pytest.mark.parametrize("service", [anthropic, openai])
def test_a_task_edits_a_real_file_and_resumes_elsewhere(
    service: Any, project: Path, tmp_path: Path
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Chat Completions has no signed thinking to send back.
    script = task("I should look first." if service is anthropic else None)
    with ScriptedLLM.running([*script, "As I said."]) as server:
        done = run_amplifier(
            "run",
            "--mode",
            "edits",
            "--approve",
            "allow",
            "Fix the typo.",
            home=home,
            cwd=project,
            env=service(server),
        )
        assert (done.code, done.stdout) == (0, "Fixed the typo.\n"), done.stderr
        assert (project / "notes.txt").read_text() == "this is the text\n"

        listed = run_amplifier(
            "session", "list", "--all", "--output", "json", home=home, cwd=elsewhere
        )
        (session,) = json.loads(listed.stdout)
        assert session["project"] == str(project)
        again = run_amplifier(
            "run", "--resume", session["id"], "What did you do?",
            home=home, cwd=elsewhere, env=service(server),
        )  # fmt: skip
        assert (again.code, again.stdout) == (0, "As I said.\n"), again.stderr
        # A strict service rejects an invalid continuation.
        assert server.rejections == []
        last = json.dumps(server.completions[-1].body)
        for text in ("Fix the typo.", "Fixed the typo.", "What did you do?", "this is teh text"):
            assert text in last


def test_a_killed_turn_resumes_without_running_its_call_again(
    project: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    command = "echo ran >> ran.txt; sleep 60"
    with ScriptedLLM.running(
        [Reply(tool_calls=[ToolCall("bash", {"command": command})]), "It was interrupted."]
    ) as server:
        process = start_amplifier(
            "run", "--approve", "allow", "Go.", home=home, cwd=project, env=anthropic(server)
        )
        with process:
            for _ in range(600):
                if (project / "ran.txt").exists():
                    break
                with pytest.raises(Exception, match="timed out"):
                    process.wait(timeout=0.05)
            process.send_signal(signal.SIGKILL)
        again = run_amplifier(
            "run", "--continue", "What happened?", home=home, cwd=project, env=anthropic(server)
        )
        assert (again.code, again.stdout) == (0, "It was interrupted.\n"), again.stderr
        assert "it may have taken effect" in json.dumps(server.completions[-1].body)
        assert server.rejections == []
    assert (project / "ran.txt").read_text() == "ran\n"


def test_a_failing_service_exits_with_its_code_and_no_answer(project: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    config = {"max_retries": 0, "idle_timeout": 1}
    plan.write_text(json.dumps(small_plan({"module": "provider-anthropic", "config": config})))
    failures: list[tuple[Any, int, str]] = [
        (Status(401), 4, "authentication"),
        (Status(404), 5, "provider"),
        (Status(529), 75, "unavailable"),
        (Status(429, headers={"retry-after": "7"}), 75, "unavailable"),
        (Reply("Half an ans", fault=Stall(after=4)), 75, "unavailable"),
    ]
    for reply, code, outcome in failures:
        with ScriptedLLM.running([reply]) as server:
            arguments = ("run", "--plan", plan, "Go.", "--output", "json")
            done = run_amplifier(*arguments, cwd=project, env=anthropic(server))
        assert done.code == code, done.stderr
        result = json.loads(done.stdout)
        assert (result["exit_code"], result["outcome"]) == (code, outcome)
        assert result["response"] == ""
        assert result["error"]["message"]
        if isinstance(reply, Status) and reply.headers:
            assert result["error"]["retry_after_ms"] == pytest.approx(7000, abs=700)
        assert "Traceback" not in done.stderr
        assert "test-key" not in done.stdout + done.stderr
