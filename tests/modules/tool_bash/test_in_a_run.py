"""The tool inside the real program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import run_amplifier, start_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.processes import processes_in

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def key_and_url(server: ScriptedLLM) -> dict[str, str | None]:
    return {"ANTHROPIC_API_KEY": "sk-test-key-of-the-run", "ANTHROPIC_BASE_URL": server.base_url}


def pids(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "pids").read_text().split()]
    except FileNotFoundError:
        return []


def test_the_end_of_a_run_ends_the_background(tmp_path: Path) -> None:
    call = ToolCall("bash", {"command": "sleep 300 & echo $! > pids"})
    with ScriptedLLM.running([Reply(tool_calls=[call]), "done"]) as server:
        finished = run_amplifier(
            "run", "--approve", "allow", "go", cwd=tmp_path, env=key_and_url(server)
        )
        result = server.completions[1].body["messages"][-1]["content"][0]
    assert (finished.code, finished.stdout) == (0, "done\n"), finished.stderr
    text = result["content"] if isinstance(result["content"], str) else result["content"][0]["text"]
    assert "still running in the background" in text
    assert pids(tmp_path)
    assert not processes_in(tmp_path)


def test_commands_of_a_run_do_not_see_its_key(tmp_path: Path) -> None:
    call = ToolCall("bash", {"command": "env; cat /proc/$PPID/environ"})
    with ScriptedLLM.running([Reply(tool_calls=[call]), "done"]) as server:
        finished = run_amplifier(
            "run", "--approve", "allow", "go", cwd=tmp_path, env=key_and_url(server)
        )
        sent = str(server.completions[1].body)
    assert finished.code == 0, finished.stderr
    assert "AMPLIFIER_HOME=" in sent
    assert "sk-test-key-of-the-run" not in sent


def test_processes_left_running_do_not_hold_standard_error_open(tmp_path: Path) -> None:
    """A reader of the program's output reaches its end even if a command left a process."""
    call = ToolCall("bash", {"command": "setsid sleep 300 >/dev/null 2>&1 & echo $! > pids"})
    with ScriptedLLM.running([Reply(tool_calls=[call]), "done"]) as server:
        process = start_amplifier(
            "run",
            "--approve",
            "allow",
            "go",
            cwd=tmp_path,
            env=key_and_url(server),
            stderr=subprocess.STDOUT,
        )
        with process:
            output, _ = process.communicate(timeout=30)
    assert b"done" in output
    assert os.path.exists(tmp_path / "pids")
