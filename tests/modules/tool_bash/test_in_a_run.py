"""The tool inside the real program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import start_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def test_processes_left_running_do_not_hold_standard_error_open(tmp_path: Path) -> None:
    """A reader of the program's output reaches its end even if a command left a process."""
    call = ToolCall("bash", {"command": "setsid sleep 300 >/dev/null 2>&1 & echo $! > pids"})
    with ScriptedLLM.running([Reply(tool_calls=[call]), "done"]) as server:
        process = start_amplifier(
            *("run", "--approve", "allow", "go"),
            cwd=tmp_path,
            env={"ANTHROPIC_API_KEY": "sk-test-key", "ANTHROPIC_BASE_URL": server.base_url},
            stderr=subprocess.STDOUT,
        )
        with process:
            output, _ = process.communicate(timeout=30)
    assert b"done" in output
    assert os.path.exists(tmp_path / "pids")
