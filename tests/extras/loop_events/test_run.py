"""loop-events as the program runs it."""

import json
from pathlib import Path

from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan

STEPS = [{"name": "draft", "prompt": "Write it."}, {"name": "fix", "prompt": "Fix it."}]


def session(**config: object) -> dict[str, object]:
    orchestrator = {"module": "loop-events", "config": {"steps": STEPS, **config}}
    return {"orchestrator": orchestrator, "context": "context-simple"}


def test_only_the_answer_of_the_last_step_is_on_stdout(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["A draft.", "Fixed."], session=session())
    done = run_amplifier("run", "-f", str(plan), "go", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "Fixed.\n")
    assert "step: draft" in done.stderr
    assert "step: fix" in done.stderr


def test_a_turn_of_too_many_steps_has_an_exit_code(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["A draft.", "Fixed."], session=session(max_steps=1))
    done = run_amplifier("run", "-f", str(plan), "--output", "json", "go", cwd=tmp_path)
    assert done.code == 7
    result = json.loads(done.stdout)
    assert "stopped at the step limit of the orchestrator" in json.dumps(result)


def test_invalid_steps_are_reported_with_their_place_in_the_plan(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["never"], session=session(steps=[{"name": "a", "next": "b"}]))
    done = run_amplifier("run", "-f", str(plan), "go", cwd=tmp_path)
    assert done.code == 3
    assert str(plan) in done.stderr
    assert "'next' of step 'a' is 'b', which is not a step" in done.stderr
