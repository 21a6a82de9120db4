"""Budgets on the command line: exit code 7, the message, and resuming."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load
from tests.support import schemas
from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, Stall, ToolCall, Usage
from tests.support.plans import mock_plan

USAGE = {"input_tokens": 60, "output_tokens": 40, "cost_usd": "0.02"}


def working_plan(folder: Path, rounds: int = 20, **more: Any) -> Path:
    """A plan whose model never stops, with a different call each time."""
    asks = [
        {
            "tool_calls": [{"name": "write_file", "input": {"path": "n.txt", "content": f"{n}"}}],
            "usage": USAGE,
        }
        for n in range(rounds)
    ]
    return mock_plan(folder, asks, tools=[{"module": "tool-filesystem"}], **more)


def to_result(done: Finished) -> dict[str, Any]:
    result = json.loads(done.stdout)
    schemas.RESULT.validate(result)
    return result


def with_budget(plan: Path, **limits: Any) -> Path:
    document = yaml.safe_load(plan.read_text())
    document["session"]["budget"] = limits
    plan.write_text(yaml.safe_dump(document))
    return plan


KEY = {"ANTHROPIC_API_KEY": "test-key"}


def server_plan(folder: Path, server: ScriptedLLM, **limits: Any) -> Path:
    """A plan that uses the model of a server; run it with `KEY`."""
    config = {"base_url": server.base_url, "model": "claude-sonnet-4-5"}
    plan = {
        "session": {
            "orchestrator": "loop-streaming",
            "context": "context-simple",
            "budget": limits,
        },
        "providers": [{"module": "provider-anthropic", "config": config}],
        "tools": ["tool-filesystem"],
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


@pytest.mark.parametrize(
    ("options", "limit", "turns", "message", "option"),
    [
        (
            ["--max-tokens-total", "250"],
            {"name": "max_tokens", "allowed": 250, "spent": 300},
            3,
            "token budget reached: used 300, limit 250 (session.budget.max_tokens)",
            "--max-tokens-total N",
        ),
        (
            ["--max-cost", "0.05"],
            {"name": "max_cost", "allowed": 0.05, "spent": 0.06},
            3,
            "cost budget reached: used $0.06, limit $0.05 (session.budget.max_cost)",
            "--max-cost DOLLARS",
        ),
        (
            ["--set", "session.budget.max_steps=2"],
            {"name": "max_steps", "allowed": 2, "spent": 2},
            2,
            "step budget reached: used 2, limit 2 (session.budget.max_steps)",
            "--set session.budget.max_steps=N",
        ),
        (
            ["--set", "session.budget.max_tool_calls=4"],
            {"name": "max_tool_calls", "allowed": 4, "spent": 4},
            5,
            "tool call budget reached: used 4, limit 4 (session.budget.max_tool_calls)",
            "--set session.budget.max_tool_calls=N",
        ),
    ],
)
def test_a_reached_limit_exits_with_7_and_names_the_limit_and_its_option(
    tmp_path: Path, options: list[str], limit: dict[str, Any], turns: int, message: str, option: str
) -> None:
    plan = working_plan(tmp_path)
    arguments = ["run", "-f", str(plan), "go", "--session", "s", *options]
    done = run_amplifier(*arguments, "--output", "json", cwd=tmp_path)
    result = to_result(done)
    assert (done.code, result["outcome"], result["reason"]) == (7, "budget", "budget")
    assert result["limit"] == limit
    assert result["steps"] == turns
    assert message in done.stderr
    assert f"amplifier run --resume s {option}" in done.stderr


def test_an_exhausted_budget_stops_requests_until_the_limit_is_raised(
    tmp_path: Path,
) -> None:
    usage = Usage(input_tokens=70, output_tokens=30)
    call = ToolCall("write_file", {"path": "n.txt", "content": "x"}, id="call_1")
    replies = [Reply(tool_calls=[call], usage=usage), Reply("first", usage=usage), "second"]
    with ScriptedLLM.running(replies) as server:
        plan = server_plan(tmp_path, server, max_tokens=100)

        done = run_amplifier("run", "-f", plan, "--session", "s", "go", cwd=tmp_path, env=KEY)
        assert (done.code, len(server.completions)) == (7, 1)
        for _ in range(2):
            refused = run_amplifier("run", "--resume", "s", "go on", cwd=tmp_path, env=KEY)
            assert (refused.code, refused.stdout, len(server.completions)) == (7, "", 1)

        more = ["--max-tokens-total", "150"]
        raised = run_amplifier("run", "--resume", "s", "go on", *more, cwd=tmp_path, env=KEY)
        assert (raised.code, raised.stdout) == (0, "first\n")
        assert len(server.completions) == 2
        assert server.rejections == []
        used_up = run_amplifier("run", "--resume", "s", "go on", *more, cwd=tmp_path, env=KEY)
        assert (used_up.code, len(server.completions)) == (7, 2)
        assert "used 200, limit 150" in used_up.stderr


def test_an_unknown_price_is_reported_and_not_counted_as_zero(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["one", "two"])
    first = run_amplifier("run", "-f", plan, "hi", "--session", "s", "--max-cost", "1")
    assert (first.code, first.stdout) == (0, "one\n")
    done = run_amplifier("run", "--resume", "s", "hi", "--max-cost", "1")
    assert (done.code, done.stdout) == (7, "")
    assert "cannot enforce session.budget.max_cost: no price known for this model" in (done.stderr)
    assert "--set session.budget.max_cost=null" in done.stderr
    out = ["--set", "session.budget.max_cost=null"]
    succeed("run", "--resume", "s", "hi", *out)


def test_a_model_without_a_price_is_refused_before_the_first_request(tmp_path: Path) -> None:
    with ScriptedLLM.running(["one"]) as server:
        plan = server_plan(tmp_path, server, max_cost=1)
        done = run_amplifier("run", "-f", plan, "hi", env=KEY)
        assert (done.code, done.stdout, server.completions) == (7, "", [])
        why = "no price known for 'claude-sonnet-4-5' of anthropic"
        assert f"cannot enforce session.budget.max_cost: {why}" in " ".join(done.stderr.split())
        assert "'list_prices: true'" in done.stderr
        checked = run_amplifier("plan", "check", "-f", plan, env=KEY)
        assert checked.code == 78
        message = (
            "cannot enforce session.budget.max_cost: anthropic has no price for 'claude-sonnet-4-5'"
        )
        assert message in " ".join(checked.stderr.split())
        priced = ["--set", "providers.provider-anthropic.config.list_prices=true"]
        succeed("plan", "check", "-f", plan, *priced, env=KEY)
        assert run_amplifier("run", "-f", plan, "hi", *priced, env=KEY).stdout == "one\n"


def test_usage_survives_kill_9(tmp_path: Path) -> None:
    call = ToolCall("list_directory", {"path": "."})
    replies = [
        Reply(tool_calls=[call]),
        Reply(tool_calls=[ToolCall("list_directory", {"path": "./"})]),
        Reply("never", fault=Stall(after=1)),
    ]
    with ScriptedLLM.running(replies) as server:
        plan = server_plan(tmp_path, server, max_steps=9)
        run = ["run", "-f", str(plan), "--session", "s", "go"]
        with start_amplifier(*run, cwd=tmp_path, env=KEY) as process:
            server.wait_for_requests(3)
            process.kill()
        limit = ["--set", "session.budget.max_steps=2"]
        done = run_amplifier("run", "--resume", "s", "go on", *limit, cwd=tmp_path, env=KEY)
        assert done.code == 7
        assert "step budget reached: used 2, limit 2" in done.stderr
        assert len(server.completions) == 3


def test_max_seconds_ends_a_hanging_run(tmp_path: Path) -> None:
    plan = with_budget(mock_plan(tmp_path, [{"text": "late", "delay": 60}]), max_seconds=0.3)
    done = run_amplifier("run", "-f", plan, "hi", "--output", "json", timeout=30)
    result = to_result(done)
    assert (done.code, result["limit"]["name"]) == (7, "max_seconds")
    assert ", limit 0.3 s (session.budget.max_seconds)" in done.stderr


def test_repeated_tool_calls_exit_with_7(tmp_path: Path) -> None:
    call = {"tool_calls": [{"name": "list_directory", "input": {"path": "."}}]}
    tools = [{"module": "tool-filesystem"}]
    plan = mock_plan(tmp_path, [call], mock={"on_end": "repeat"}, tools=tools)
    done = run_amplifier("run", "-f", plan, "hi", "--output", "json", cwd=tmp_path)
    result = to_result(done)
    assert (done.code, result["reason"], result["limit"]) == (7, "no_progress", None)
    assert "'list_directory' had the same result 6 times in a row" in done.stderr


def test_an_invalid_budget_is_reported_with_its_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    for budget, message in (
        ("{max_token: 5}", "unknown key 'max_token' in session.budget"),
        ("{max_steps: 0}", "'session.budget.max_steps' is a number"),
        ("{max_steps: 1.5}", "expected a whole number greater than 0"),
        ("{max_cost: free}", "expected a number greater than 0"),
        ("{max_tokens: true}", "'session.budget.max_tokens' is a boolean"),
        ("5", "'session.budget' is a number"),
    ):
        plan.write_text(f"extends: mock\nsession:\n  budget: {budget}\n")
        with pytest.raises(PlanError) as refused:
            load(plan=str(plan), environ={})
        [problem] = refused.value.problems
        assert (problem.at.line, message in f"{problem.message} {problem.hint}") == (3, True)


def test_an_invalid_amount_is_a_usage_error() -> None:
    for amount in ("0", "nan"):
        assert run_amplifier("run", "hi", "--max-cost", amount).code == 2


def test_sub_agents_share_the_budget_and_exceed_it_by_at_most_one_request(tmp_path: Path) -> None:
    usage = Usage(input_tokens=80, output_tokens=20)
    counter = iter(range(1000))

    def answer(request: Request) -> Reply:
        """The main agent delegates three tasks at once; each sub-agent keeps working."""
        if any(tool["name"] == "task" for tool in request.body["tools"]):
            asks = [
                ToolCall("task", {"agent": "worker", "instruction": f"part {n}"}) for n in range(3)
            ]
            return Reply(tool_calls=asks, usage=usage)
        call = ToolCall("list_directory", {"path": "./" * (next(counter) + 1)})
        return Reply(tool_calls=[call], usage=usage)

    with ScriptedLLM.running([answer] * 100) as server:
        plan = server_plan(tmp_path, server, max_tokens=1000)
        document = yaml.safe_load(plan.read_text())
        document["tools"].append("tool-task")
        document["agents"] = {"worker": {"description": "works"}}
        plan.write_text(yaml.safe_dump(document))
        arguments = ["run", "-f", str(plan), "--session", "s", "go", "--output", "json"]
        done = run_amplifier(*arguments, cwd=tmp_path, env=KEY)
        asked = len(server.completions)
        again = run_amplifier("run", "--resume", "s", "go on", cwd=tmp_path, env=KEY)
        assert len(server.completions) == asked
        assert server.rejections == []
    result = to_result(done)
    assert (done.code, result["reason"]) == (7, "budget")
    assert result["limit"]["name"] == "max_tokens"
    assert asked == 10, "1000 tokens are ten requests; one that may exceed the limit waits"
    assert result["usage"]["total_tokens"] == 1000
    assert again.code == 7
    assert "token budget reached: used 1,000, limit 1,000" in again.stderr


def test_the_earlier_name_of_the_step_limit_still_works(tmp_path: Path) -> None:
    plan = working_plan(tmp_path)
    done = run_amplifier(
        "run", "-f", plan, "--set", "session.budget.max_turns=2", "hi", cwd=tmp_path
    )
    assert done.code == 7
    assert "limit 2 (session.budget.max_steps)" in done.stderr
