"""A limit of the budget in the chat: a warning before it, a question at it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.runtime.budget_limits import increment
from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan
from tests.support.terminal import CTRL_D, ENTER, Chat

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="drives a pseudo-terminal"
)
USAGE = {"input_tokens": 60, "output_tokens": 40, "cost_usd": "0.03"}


@pytest.mark.parametrize(
    ("allowed", "spent", "more"),
    [(2.0, 2.03, 1.0), (0.05, 0.31, 0.275), (1, 1, 1), (1000, 2700, 2000)],
)
def test_the_limit_grows_by_halves_until_usage_fits(allowed: Any, spent: Any, more: Any) -> None:
    assert increment(allowed, spent) == pytest.approx(more)


def answers(rounds: int) -> list[dict[str, Any]]:
    asks = [
        {
            "tool_calls": [{"name": "write_file", "input": {"path": "n.txt", "content": f"{n}"}}],
            "usage": USAGE,
        }
        for n in range(rounds)
    ]
    return [*asks, {"text": "all is done", "usage": USAGE}]


def test_the_user_raises_the_limit_and_the_turn_continues(tmp_path: Path) -> None:
    home = tmp_path / "home"
    plan = mock_plan(tmp_path, answers(4), tools=[{"module": "tool-filesystem"}])
    options = ("--max-cost", "0.1", "--session", "s")
    with Chat("-f", plan, *options, home=home, cwd=tmp_path) as terminal:
        terminal.type("go" + ENTER)
        terminal.until(r"90 % of the cost budget is used: \$0.09 of \$0.10")
        terminal.until(
            r"Cost budget reached: used \$0.12, limit \$0.10. Continue with \$0.05 more\?"
        )
        terminal.type("y")
        terminal.until("all is done")
        terminal.prompt()
        # The next prompt starts at the new limit, also with another model.
        terminal.ask("/model other", r"model: other \(was mock-model\)")
        terminal.enter("more", r"used \$0.15, limit \$0.15. Continue with \$0.075 more\?")
        terminal.type("n")
        terminal.until(r"cost budget reached: used \$0.15, limit \$0.15")
        terminal.prompt()
        terminal.quit()
    metadata = json.loads((home / "sessions" / "s" / "metadata.json").read_text())
    assert metadata["budget"] == {"max_cost": 0.15}
    # A script is stopped by the limit that was raised.
    done = run_amplifier("run", "--resume", "s", "on", home=home, cwd=tmp_path)
    assert done.code == 7
    assert "cost budget reached: used $0.15, limit $0.15" in done.stderr


def test_the_status_shows_what_is_used_of_each_budget(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, answers(0))
    options = ("--max-tokens-total", "5000", "--max-cost", "2")
    with Chat("-f", plan, *options, cwd=tmp_path) as terminal:
        terminal.ask("go", r"\$0\.03 of \$2\.00 · 100 of 5k tokens")
        terminal.ask("/status", r"budget +\$0\.03 of \$2\.00, 100 of 5k tokens")
        terminal.quit()


@pytest.mark.thorough
def test_steps_of_a_prompt_are_asked_about(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, answers(7), tools=[{"module": "tool-filesystem"}])
    with Chat("-f", plan, "--max-steps", "5", cwd=tmp_path) as terminal:
        terminal.type("go" + ENTER)
        terminal.until("80 % of the step limit of the prompt is used: 4 of 5")
        terminal.until(r"Step limit of the prompt reached: used 5, limit 5. Continue with 2 more\?")
        terminal.type("y")
        terminal.until(r"used 7, limit 7. Continue with 3 more\?")
        terminal.type("y")
        terminal.until("all is done")
        terminal.prompt()
        terminal.quit()


def test_a_word_being_typed_is_not_an_answer(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, answers(3), tools=[{"module": "tool-filesystem"}])
    with Chat("-f", plan, "--max-steps", "2", cwd=tmp_path) as terminal:
        terminal.enter("go", r"used 2, limit 2. Continue with 1 more\?")
        terminal.type("you")
        terminal.until("you")
        terminal.type("\x7f" * 3 + "n")
        terminal.until("stopped after 2 model calls")
        terminal.prompt()
        terminal.type(CTRL_D)
        assert "used 3" not in terminal.shown
        terminal.finish()


def test_a_sub_agent_asks_for_the_limit_of_the_session(tmp_path: Path) -> None:
    task = {"name": "task", "input": {"agent": "worker", "instruction": "Work."}}
    worker = {
        "providers": [{"module": "provider-mock", "config": {"replies": answers(2)}}],
        "tools": [{"module": "tool-filesystem"}],
    }
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [task], "usage": USAGE}, {"text": "the task is done", "usage": USAGE}],
        tools=[{"module": "tool-task"}],
        agents={"worker": worker},
    )
    limit = ("--set", "session.budget.max_steps=2")
    with Chat("-f", plan, *limit, cwd=tmp_path) as terminal:
        terminal.type("go" + ENTER)
        for used, agent in ((2, "worker: "), (3, "worker: "), (4, "")):
            terminal.until(f"{agent}Step budget reached: used {used}, limit {used}. Continue")
            terminal.type("y")
        terminal.until("the task is done")
        terminal.prompt()
        terminal.quit()
