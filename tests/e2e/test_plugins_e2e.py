"""Plugins in real sessions: their skills, agents and servers reach the model, their commands the chat."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.test_chat_pty import leave, prompts
from tests.support.cli import run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.module_repositories import Repository
from tests.support.plans import mock_plan
from tests.support.plugins import write_plugin
from tests.support.terminal import Chat

PLAN = """
extends: default
plugins: ['{source}']
providers: [{{module: provider-anthropic, config: {{priority: 1}}}}]
tools: [{{module: tool-mcp, config: {{wait: 30}}}}]
"""


def environment(server: ScriptedLLM) -> dict[str, str | None]:
    return {"ANTHROPIC_API_KEY": "sk-test-key-of-the-run", "ANTHROPIC_BASE_URL": server.base_url}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_the_model_uses_its_skill_its_server_and_its_agent(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    server = {
        "command": sys.executable,
        "args": ["${CLAUDE_PLUGIN_ROOT}/server/echo.py"],
        "env": {"CALLS": "${CLAUDE_PLUGIN_DATA}/calls"},
    }
    write_plugin(repository.folder, mcpServers={"echo": server})
    (repository.folder / ".mcp.json").unlink()
    repository.commit({})
    home = tmp_path / "home"
    plan = tmp_path / "work/plan.yaml"
    plan.parent.mkdir()
    plan.write_text(PLAN.format(source=repository.url))
    script = [
        Reply(tool_calls=[ToolCall("skill", {"name": "triage"})]),
        Reply(tool_calls=[ToolCall("mcp_review-echo_echo", {"text": "from the plugin"})]),
        Reply(tool_calls=[ToolCall("task", {"agent": "review:reviewer", "instruction": "go"})]),
        "looks good",
        "done",
    ]
    with ScriptedLLM.running(script) as llm:
        done = run_amplifier(
            *("run", "--plan", plan, "go", "--approve", "allow"),
            home=home,
            cwd=plan.parent,
            env=environment(llm),
        )
        bodies = [request.body for request in llm.completions]
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    results = [json.dumps(body["messages"][-1]) for body in bodies]
    assert "Read each issue twice." in results[1]
    assert "from the plugin" in results[2]
    assert "looks good" in results[4]
    assert "echo" in (home / "plugins/review/calls").read_text()
    assert "You review." in json.dumps(bodies[3]["system"])
    offered = {tool["name"] for tool in bodies[3]["tools"]}
    assert {"read_file", "grep"} <= offered
    assert not {"bash", "task", "web_fetch", "todo"} & offered


def test_an_agent_cannot_call_what_it_does_not_list(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path / "review")
    plan = tmp_path / "work/plan.yaml"
    plan.parent.mkdir()
    plan.write_text(PLAN.format(source=folder))
    script = [
        Reply(tool_calls=[ToolCall("task", {"agent": "review:reviewer", "instruction": "go"})]),
        Reply(tool_calls=[ToolCall("write_file", {"path": "made.txt", "content": "x"})]),
        "could not",
        "done",
    ]
    with ScriptedLLM.running(script) as server:
        done = run_amplifier(
            *("run", "--plan", plan, "go", "--approve", "allow"),
            cwd=plan.parent,
            env=environment(server),
        )
        result = json.dumps(server.completions[2].body["messages"][-1])
    assert done.stdout == "done\n", done.stderr
    assert "does not list the tool" in result
    assert not (plan.parent / "made.txt").exists()


def test_its_commands_are_slash_commands_of_the_chat(tmp_path: Path) -> None:
    one, two = write_plugin(tmp_path / "one", "one"), write_plugin(tmp_path / "two", "two")
    only = {"only": ["commands"]}
    plan = mock_plan(
        tmp_path,
        ["read it", "read it again"],
        plugins=[{"source": str(one), **only}, {"source": str(two), **only}],
    )
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("/review-file src/a.py", "read it")
        terminal.ask("/two-review-file src/b.py", "read it again")
        session = leave(terminal)
    assert prompts(session) == ["Review src/a.py now.", "Review src/b.py now."]
