"""`run --tools` offers only some tools, and `run --stream` writes text as it comes."""

import json
from pathlib import Path

from tests.e2e.agent_scripts import LEAD, plan_of, requests_of, running_agents, task
from tests.support.cli import run_amplifier, start_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM
from tests.support.plans import mock_plan


def test_only_the_named_tools_are_offered() -> None:
    choices: dict[str, set[str]] = {
        "read_file,grep": {"read_file", "grep"},
        "*_file": {"read_file", "write_file", "edit_file"},
        "": set(),
    }
    with ScriptedLLM.running(["hello"], repeat_last=True) as server:
        for selected, offered in choices.items():
            done = run_amplifier("run", "--tools", selected, "hi", env=server.env)
            assert (done.code, done.stdout) == (0, "hello\n"), done.stderr
            body = server.completions[-1].body
            assert {tool["name"] for tool in body.get("tools") or ()} == offered


def test_sub_agents_get_no_more_than_the_named_tools(tmp_path: Path) -> None:
    lines = {LEAD: [Reply(tool_calls=[task("worker", "go")]), "Done."], "worker": ["I worked."]}
    with running_agents(lines) as server:
        plan = plan_of(tmp_path, server, {"worker": {}})
        options = ("--tools", "task,bash", "--approve", "allow")
        env = {"ANTHROPIC_API_KEY": "test-key"}
        succeed("run", "-f", plan, *options, "go", cwd=tmp_path, env=env)
        (request,) = requests_of(server, "worker")
    assert {tool["name"] for tool in request["tools"]} <= {"task", "bash"}


def test_an_unknown_tool_is_a_usage_error_with_the_nearest_name() -> None:
    done = run_amplifier("run", "-P", "mock", "--tools", "read_fil", "hi")
    assert (done.code, done.stdout) == (2, "")
    assert "the plan has no tool 'read_fil'" in done.stderr
    assert "did you mean 'read_file'" in done.stderr


def test_stream_writes_text_as_it_comes_although_tools_are_offered(tmp_path: Path) -> None:
    call = {"text": "I look.", "tool_calls": [{"name": "glob", "arguments": {"pattern": "*"}}]}
    slow = {"chunk_size": 4, "chunk_delay": 0.1}
    plan = mock_plan(tmp_path, [call, "one two"], mock=slow, tools=[{"module": "tool-search"}])
    with start_amplifier("run", "-f", plan, "--stream", "hi", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"I lo"
        assert process.poll() is None
        assert process.stdout.read() == b"ok.\none two\n"
    done = run_amplifier("run", "-f", plan, "--output", "json", "hi", cwd=tmp_path)
    assert json.loads(done.stdout)["response"] == "one two"
