"""Servers inside the real program: what the model gets, and that nothing of them is left."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.extras.tool_mcp.support import raw
from tests.support.cli import run_amplifier, start_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.processes import processes_with
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def environment(server: ScriptedLLM) -> dict[str, str | None]:
    return {"ANTHROPIC_API_KEY": "sk-test-key-of-the-run", "ANTHROPIC_BASE_URL": server.base_url}


def write_plan(folder: Path, servers: dict[str, Any], **config: Any) -> Path:
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [{"module": "provider-anthropic"}],
        "tools": [{"module": "tool-mcp", "config": {"wait": 30, "servers": servers, **config}}],
    }
    # YAML is a superset of JSON.
    path = folder / "plan.yaml"
    path.write_text(json.dumps(plan))
    return path


def mark() -> str:
    return f"mark-{os.getpid()}-{time.monotonic_ns()}"


def test_a_model_uses_a_tool_of_a_server(tmp_path: Path) -> None:
    word = mark()
    plan = write_plan(tmp_path, {"raw": raw(env={"MARK": word})})
    script = [Reply(tool_calls=[ToolCall("mcp_raw_echo", {"text": "from the server"})]), "done"]
    with ScriptedLLM.running(script) as server:
        done = run_amplifier("run", "--plan", plan, "go", cwd=tmp_path, env=environment(server))
        offered = [tool["name"] for tool in server.completions[0].body["tools"]]
        result = server.completions[1].body["messages"][-1]["content"][0]
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert "mcp_raw_echo" in offered
    assert "from the server" in json.dumps(result["content"])
    assert processes_with(word) == []


def test_a_slow_server_does_not_hold_up_the_start(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, {"slow": raw("silent")}, wait=0.1)
    with ScriptedLLM.running(["done"]) as server:
        done = run_amplifier("run", "--plan", plan, "go", cwd=tmp_path, env=environment(server))
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr


def test_an_unavailable_required_server_is_a_plan_error(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, {"raw": raw("exit", required=True)})
    with ScriptedLLM.running(["done"]) as server:
        done = run_amplifier("run", "--plan", plan, "go", cwd=tmp_path, env=environment(server))
        assert server.completions == []
    assert done.code == 3
    assert "required servers are not ready: raw: exited with code 1" in done.stderr
    assert "cannot work like this" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("numbers", "code"),
    [([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGTERM], 143), ([signal.SIGKILL], -9)],
)
def test_a_signal_leaves_no_server(tmp_path: Path, numbers: list[int], code: int) -> None:
    word = mark()
    servers = {name: raw("stubborn", env={"MARK": word}) for name in ("one", "two")}
    script = [Reply(tool_calls=[ToolCall("mcp_one_hang", {})]), "never said"]
    with ScriptedLLM.running(script) as server:
        plan = write_plan(tmp_path, servers)
        process = start_amplifier(
            "run", "--plan", plan, "go", cwd=tmp_path, env=environment(server)
        )
        with process:
            wait_until(
                lambda: len(processes_with(word)) >= 6 and server.completions, process=process
            )
            time.sleep(0.2)
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.1)
            try:
                _, stderr = process.communicate(timeout=30)
            finally:
                process.kill()
    wait_until(lambda: not processes_with(word), 2, about=lambda: stderr)
    assert process.returncode == code, stderr


def test_a_project_that_is_not_trusted_starts_no_server(tmp_path: Path) -> None:
    project = tmp_path / "project"
    ran = project / "ran"
    servers = {"it": {"command": "sh", "args": ["-c", f"touch {ran}; cat"], "required": True}}
    (project / ".amplifier").mkdir(parents=True)
    settings = {"tools": [{"module": "tool-mcp", "config": {"servers": servers}}]}
    (project / ".amplifier" / "settings.yaml").write_text(json.dumps(settings))
    # What other programs read there is nothing to this one.
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    with ScriptedLLM.running(["done", "done"]) as server:
        env = environment(server)
        refused = run_amplifier("run", "go", cwd=project, env=env)
        assert refused.code == 78, refused.stderr
        left_out = run_amplifier("run", "--no-project", "go", cwd=project, env=env)
        assert (left_out.code, left_out.stdout) == (0, "done\n"), left_out.stderr
        for command in (("plan", "show"), ("plan", "check"), ("tool", "list"), ("trust", "--show")):
            run_amplifier(*command, cwd=project, env=env)
        assert not ran.exists()
        shown = run_amplifier("trust", "--show", cwd=project, env=env)
        assert "command sh" in shown.stdout + shown.stderr
        # The control: where it is trusted the program is started.
        run_amplifier("run", "--trust", "go", cwd=project, env=env)
        assert ran.exists()
