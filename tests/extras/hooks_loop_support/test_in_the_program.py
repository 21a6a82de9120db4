"""Budgets and fallbacks of plans whose orchestrator supports neither."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.extras.hooks_loop_support.loops import foreign_plan
from tests.support import schemas
from tests.support.cli import run_amplifier, succeed
from tests.support.llm_server import ScriptedLLM
from tests.support.plans import mock_plan

USAGE = {"input_tokens": 60, "output_tokens": 40, "cost_usd": "0.02"}
FILES = [{"module": "tool-filesystem"}]


def writing(rounds: int = 20, calls: int = 1) -> list[Any]:
    """Replies that write files, then end."""
    numbers = [range(n * calls, (n + 1) * calls) for n in range(rounds)]
    return [
        *(
            {
                "tool_calls": [
                    {"name": "write_file", "input": {"file_path": f"{n}.txt", "content": "x"}}
                    for n in several
                ],
                "usage": USAGE,
            }
            for several in numbers
        ),
        {"text": "done", "usage": USAGE},
    ]


def delegating_plan(folder: Path, tasks: int = 1) -> Path:
    """A plan that gives tasks to an agent, which writes files."""
    worker = {
        "description": "writes",
        "providers": [{"module": "provider-mock", "config": {"replies": writing()}}],
        "tools": FILES,
    }
    task = {"name": "task", "input": {"agent": "worker", "instruction": "write"}}
    replies = [{"tool_calls": [task] * tasks, "usage": USAGE}, {"text": "done", "usage": USAGE}]
    return foreign_plan(folder, replies, tools=["tool-task"], agents={"worker": worker})


def run(plan: Path, *options: str) -> tuple[int, dict[str, Any]]:
    arguments = ("run", "-f", plan, "go", "--output", "json", *options)
    done = run_amplifier(*arguments, cwd=plan.parent)
    result = json.loads(done.stdout)
    schemas.RESULT.validate(result)
    return done.code, result


@pytest.mark.parametrize(
    ("limit", "spent", "loop"),
    [
        ("max_cost=0.05", 0.06, {}),
        ("max_tool_calls=3", 3, {"answers_errors": True}),
        ("max_steps=3", 3, {"answers_errors": True}),
        ("max_tokens=250", 300, {"streams": True}),
    ],
)
def test_a_limit_ends_the_prompt_after_at_most_one_request_more(
    tmp_path: Path, limit: str, spent: float, loop: dict[str, Any]
) -> None:
    plan = foreign_plan(tmp_path, writing(), loop=loop, tools=FILES)
    code, result = run(plan, "--set", f"session.budget.{limit}")
    name, _, allowed = limit.partition("=")
    assert (code, result["reason"]) == (7, "budget")
    assert result["limit"] == {"name": name, "allowed": float(allowed), "spent": spent}
    assert len([*tmp_path.glob("[0-9].txt")]) == 3
    assert result["steps"] == (4 if name == "max_tool_calls" else 3)


def test_an_answer_is_shown_also_if_what_follows_it_reaches_the_limit(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, writing(1), loop={"reviews": True}, tools=FILES)
    done = run_amplifier("run", "-f", plan, "go", "--max-cost", "0.03", cwd=tmp_path)
    assert (done.code, done.stdout) == (7, "done\n")
    assert "cost budget reached: used $0.04, limit $0.03" in done.stderr


def test_calls_of_one_answer_beyond_the_limit_do_not_run(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, writing(calls=5), tools=FILES)
    code, result = run(plan, "--set", "session.budget.max_tool_calls=3")
    assert (code, result["limit"]["name"]) == (7, "max_tool_calls")
    assert sorted(path.name for path in tmp_path.glob("[0-9].txt")) == ["0.txt", "1.txt", "2.txt"]
    assert [tool["outcome"] for tool in result["tools"]] == ["ok"] * 3 + ["interrupted"] * 2
    assert result["steps"] == 1


def test_the_time_limit_stops_a_tool_that_is_running(tmp_path: Path) -> None:
    replies = [{"tool_calls": [{"name": "bash", "input": {"command": "sleep 60"}}]}, "done"]
    plan = foreign_plan(tmp_path, replies, tools=[{"module": "tool-bash"}])
    code, result = run(plan, "--set", "session.budget.max_seconds=0.5", "--approve", "allow")
    assert (code, result["limit"]["name"]) == (7, "max_seconds")
    assert [(tool["name"], tool["outcome"]) for tool in result["tools"]] == [
        ("bash", "interrupted")
    ]
    assert result["denied"] == []


def test_a_session_goes_on_with_a_higher_limit_only(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, writing(4), tools=FILES)
    assert run(plan, "--session", "s", "--max-cost", "0.03")[0] == 7
    again = run_amplifier("run", "--resume", "s", "on", cwd=tmp_path)
    assert again.code == 7
    assert "cost budget reached: used $0.04, limit $0.03" in again.stderr
    assert len([*tmp_path.glob("[0-9].txt")]) == 2
    raised = run_amplifier("run", "--resume", "s", "on", "--max-cost", "1", cwd=tmp_path)
    assert (raised.code, raised.stdout) == (0, "done\n"), raised.stderr


def test_a_limit_applies_to_what_was_used_before_there_was_one(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, writing(2), tools=FILES)
    assert run(plan, "--session", "s")[1]["cost"] == {"usd": 0.06}
    again = run_amplifier("run", "--resume", "s", "on", "--max-cost", "0.05", cwd=tmp_path)
    assert again.code == 7
    assert "cost budget reached: used $0.06, limit $0.05" in again.stderr


def test_the_limit_of_a_batch_stops_its_rows(tmp_path: Path) -> None:
    plan = delegating_plan(tmp_path)
    rows = tmp_path / "rows.txt"
    rows.write_text("one\n")
    options = ("--prompt", "{{text}}", "-o", tmp_path / "out", "--max-cost", "0.05")
    done = run_amplifier("batch", "run", plan, rows, *options, cwd=tmp_path)
    assert done.code == 7
    assert "cost budget reached: used $0.06, limit $0.05 (--max-cost)" in done.stderr


def test_an_unknown_price_ends_the_prompt_after_the_first_request(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, [{"text": "one", "usage": {"input_tokens": 5}}])
    done = run_amplifier("run", "-f", plan, "hi", "--max-cost", "1", "--session", "s")
    assert (done.code, done.stdout) == (0, "one\n")
    again = run_amplifier("run", "--resume", "s", "again")
    assert again.code == 7
    assert "no price known for this model" in again.stderr


@pytest.mark.parametrize("streams", [False, True])
def test_a_model_without_a_price_gets_no_request(tmp_path: Path, streams: bool) -> None:
    with ScriptedLLM.running(["one"]) as server:
        plan = foreign_plan(tmp_path, [], loop={"streams": streams})
        document = yaml.safe_load(plan.read_text())
        config = {"base_url": server.base_url, "api_key": "k", "model": "m"}
        document["providers"] = [{"module": "provider-anthropic", "config": config}]
        plan.write_text(yaml.safe_dump(document))
        done = run_amplifier("run", "-f", plan, "hi", "--max-cost", "1")
        assert (done.code, done.stdout, server.completions) == (7, "", [])
    assert "no price known for this model" in done.stderr


def test_sub_agents_count_against_the_budget_of_their_session(tmp_path: Path) -> None:
    plan = delegating_plan(tmp_path)
    code, result = run(plan, "--max-cost", "0.08")
    assert (code, result["limit"]) == (7, {"name": "max_cost", "allowed": 0.08, "spent": 0.08})
    assert len([*tmp_path.glob("[0-9].txt")]) == 3
    assert [one["status"] for one in result["sub_sessions"]] == ["incomplete"]


@pytest.mark.parametrize("bundled", ["lead", "worker"])
def test_a_budget_covers_bundled_and_other_orchestrators_alike(
    tmp_path: Path, bundled: str
) -> None:
    plan = delegating_plan(tmp_path, tasks=3)
    document = yaml.safe_load(plan.read_text())
    document["agents"]["worker"]["session"] = {"orchestrator": document["session"]["orchestrator"]}
    sections = {"lead": document["session"], "worker": document["agents"]["worker"]["session"]}
    sections[bundled]["orchestrator"] = "loop-basic"
    plan.write_text(yaml.safe_dump(document))
    code, result = run(plan, "--max-cost", "0.13")
    assert (code, result["limit"]) == (7, {"name": "max_cost", "allowed": 0.13, "spent": 0.14})
    assert result["cost"] == {"usd": 0.14}


def test_another_provider_answers_while_the_first_is_unavailable(tmp_path: Path) -> None:
    down = [{"error": {"type": "ProviderUnavailableError", "message": "down"}}]
    second = {
        "module": "provider-mock",
        "instance_id": "second",
        "config": {"replies": writing(2), "priority": 200},
    }
    plan = foreign_plan(tmp_path, down, tools=FILES)
    document = yaml.safe_load(plan.read_text())
    document["session"]["fallbacks"] = ["second"]
    document["providers"].append(second)
    plan.write_text(yaml.safe_dump(document))
    done = run_amplifier("run", "-f", plan, "hi", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("mock is not available: down; using second instead") == 1


def test_without_limits_the_orchestrator_is_mounted_as_it_is(tmp_path: Path) -> None:
    hook = tmp_path / "amplifier-module-hooks-look" / "amplifier_module_hooks_look"
    hook.mkdir(parents=True)
    (hook / "__init__.py").write_text(
        "async def mount(coordinator, config=None):\n"
        "    async def look(event, data):\n"
        "        print(type(coordinator.get('orchestrator')).__name__)\n"
        "    return coordinator.hooks.register('prompt:submit', look)\n"
    )
    hooks = [{"module": "hooks-look", "source": str(hook.parent)}]
    plan = foreign_plan(tmp_path, ["done"], hooks=hooks)
    assert "SupportedLoop" not in run_amplifier("run", "-f", plan, "hi").stderr
    limited = succeed("run", "-f", plan, "hi", "--max-cost", "1")
    assert "SupportedLoop" in limited.stderr


def test_a_locked_plan_needs_no_entry_for_it(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, writing(4), tools=FILES)
    succeed("plan", "lock", "-f", plan)
    code, result = run(plan, "--locked", "--max-cost", "0.03")
    assert (code, result["limit"]["name"]) == (7, "max_cost")


def test_a_plan_that_names_it_with_a_bundled_orchestrator_counts_once(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, writing(4), tools=FILES, hooks=[{"module": "hooks-loop-support"}])
    code, result = run(plan, "--set", "session.budget.max_tool_calls=3")
    assert (code, result["limit"]["spent"]) == (7, 3)
    assert len([*tmp_path.glob("[0-9].txt")]) == 3


def test_a_failure_of_the_orchestrator_is_reported_as_without_limits(tmp_path: Path) -> None:
    plan = foreign_plan(tmp_path, ["unused"], loop={"fails": True})
    plain = run_amplifier("run", "-f", plan, "hi")
    limited = run_amplifier("run", "-f", plan, "hi", "--max-cost", "1")
    assert (limited.code, limited.stderr) == (plain.code, plain.stderr)
    assert "orchestrator 'loop-foreign' raised TypeError: wrong (amplifier_module" in plain.stderr


def test_a_hook_can_raise_a_limit(tmp_path: Path) -> None:
    hook = tmp_path / "amplifier-module-hooks-generous" / "amplifier_module_hooks_generous"
    hook.mkdir(parents=True)
    (hook / "__init__.py").write_text(
        "from amplifier_core.models import HookResult\n\n\n"
        "async def mount(coordinator, config=None):\n"
        "    async def more(event, data):\n"
        "        return HookResult(action='modify', data={**data, 'allowed': 10})\n"
        "    return coordinator.hooks.register('budget:reached', more)\n"
    )
    hooks = [{"module": "hooks-generous", "source": str(hook.parent)}]
    plan = foreign_plan(tmp_path, writing(4), tools=FILES, hooks=hooks)
    code, result = run(plan, "--max-cost", "0.03")
    assert (code, result["response"], result["limit"]) == (0, "done", None)
