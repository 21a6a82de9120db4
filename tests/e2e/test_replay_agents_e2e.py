"""Recording and replaying runs of several providers and of sub-agents."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.agent_scripts import KEY, LEAD, plan_of, running_agents, simultaneous, tasks
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import Reply, Request, ScriptedLLM, Status, ToolCall

READ = Reply("Let me look.", [ToolCall("read_file", {"path": "notes.txt"})])


def to_result(run: Finished) -> dict[str, Any]:
    assert run.code == 0, run.stderr
    return json.loads(run.stdout)


def events_of(run: Finished) -> list[str]:
    """Names of the events of the run's own session, in order."""
    log = next(run.home.rglob(f"{to_result(run)['session_id']}/events.jsonl"))
    return [json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines()]


def test_sub_agents_are_answered_again_in_another_folder_too(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "notes.txt").write_text("the notes\n")

    def again(request: Request) -> Reply:
        results = json.dumps(request.body["messages"][-1]["content"])
        [session_id] = set(re.findall(r"[\w-]+_reader", results))
        more = {"session_id": session_id, "instruction": "go on"}
        return Reply(tool_calls=[ToolCall("task", more)])

    both = simultaneous(2)
    lines: dict[str, list[Any]] = {
        LEAD: [tasks("reader", "other"), again, "All is done."],
        "reader": [both(READ), "It says: the notes.", "And nothing more."],
        "other": [both("Nothing.")],
    }
    model = {"module": "provider-anthropic", "config": {"model": "claude-haiku-4-5"}}
    agents = {"reader": {"tools": ["tool-filesystem"], "providers": [model]}, "other": {}}
    with running_agents(lines) as server:
        plan_of(here, server, agents)
        shutil.copytree(here, there)
        arguments = ("run", "-f", "plan.yaml", "--output", "json", "Go.")
        first = run_amplifier(*arguments, "--record", "rec.jsonl", cwd=here, env=KEY)
        assert to_result(first)["response"] == "All is done."
    file = here / "rec.jsonl"
    requests = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    models = {line["request"]["model"] for line in requests if line["type"] == "request"}
    assert models == {"claude-sonnet-5-5", "claude-haiku-4-5"}
    second = run_amplifier(*arguments, "--replay", file, cwd=there)
    assert to_result(second)["response"] == "All is done."
    assert "not requested" not in second.stderr
    assert sorted(events_of(second)) == sorted(events_of(first))
    assert to_result(second)["usage"] == to_result(first)["usage"]


def chain_of(folder: Path, server: ScriptedLLM, **session: Any) -> Path:
    """A plan of two providers, each there only with its key, the second in case the first fails."""
    config = {"base_url": server.base_url, "max_retries": 0}
    plan = {
        "name": "chain",
        "session": {"orchestrator": "loop-basic", "context": "context-simple", **session},
        "providers": [
            {
                "module": "provider-anthropic",
                "when": {"env": "ANTHROPIC_API_KEY"},
                "config": {**config, "api_key": "${ANTHROPIC_API_KEY}"},
            },
            {
                "module": "provider-openai",
                "instance_id": "second",
                "config": {**config, "api_key": "${OPENAI_API_KEY}", "model": "m"},
            },
        ],
        "hooks": ["hooks-logging"],
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    return path


KEYS = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"}


def test_a_fallback_is_taken_again(tmp_path: Path) -> None:
    with ScriptedLLM.running([Status(529, "overloaded"), "From the second."]) as server:
        plan = chain_of(tmp_path, server, fallbacks=["second"])
        arguments = ("run", "-f", plan, "--output", "json", "Go.")
        first = run_amplifier(*arguments, "--record", "rec.jsonl", cwd=tmp_path, env=KEYS)
        assert to_result(first)["response"] == "From the second."
    again = run_amplifier(*arguments, "--replay", "rec.jsonl", cwd=tmp_path)
    assert to_result(again)["response"] == "From the second."
    assert events_of(again) == events_of(first)


def test_options_choose_provider_and_model_as_they_did(tmp_path: Path) -> None:
    with ScriptedLLM.running(["From the second."]) as server:
        plan = chain_of(tmp_path, server)
        chosen = ("run", "-f", plan, "--provider", "second", "Go.", "--model")
        first = run_amplifier(*chosen, "big", "--record", "rec.jsonl", cwd=tmp_path, env=KEYS)
        assert (first.code, first.stdout) == (0, "From the second.\n"), first.stderr
    again = run_amplifier(*chosen, "big", "--replay", "rec.jsonl", cwd=tmp_path)
    assert (again.code, again.stdout) == (0, "From the second.\n"), again.stderr
    other = run_amplifier(*chosen, "small", "--replay", "rec.jsonl", cwd=tmp_path)
    assert other.code == 9
    assert 'model: "big" → "small"' in other.stderr
