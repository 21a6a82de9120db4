"""A resumed session is as it was, and each difference is one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.runtime.saved.resume import settings_to_restore
from tests.support.cli import Finished, succeed
from tests.support.plans import mock_plan, module_folder

HOOK = """
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    coordinator.hooks.register("prompt:submit", lambda event, data: None, name="own")
"""


def run(*args: object, **more: Any) -> Finished:
    done = succeed("run", *args, "--output", "stream-json", **more)
    return done


def events(done: Finished) -> tuple[dict[str, Any], dict[str, Any]]:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[0], lines[-1]


def metadata(done: Finished, session: str) -> dict[str, Any]:
    return json.loads((done.home / "sessions" / session / "metadata.json").read_text())


def notices(done: Finished) -> list[str]:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["message"] for line in lines if line["type"] == "notice"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_digest_provider_and_model_are_in_every_result(tmp_path: Path, home: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"])
    first = run("-f", plan, "one", "--session", "s", home=home, cwd=tmp_path)
    again = run("--resume", "s", "two", home=home, cwd=tmp_path)
    about = [
        [event[key] for key in ("plan_digest", "provider", "model")]
        for done in (first, again)
        for event in events(done)
    ]
    assert about == [about[0]] * 4
    assert about[0][0].startswith("sha256:")
    assert about[0][1:] == ["mock", "mock-model"]
    saved = metadata(again, "s")
    assert [saved[key] for key in ("plan_digest", "provider", "model")] == about[0]
    assert notices(again) == []


def test_a_model_chosen_on_resume_is_kept(tmp_path: Path, home: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"])
    run("-f", plan, "one", "--session", "s", home=home, cwd=tmp_path)
    switched = run("--resume", "s", "two", "-m", "other", home=home, cwd=tmp_path)
    assert notices(switched) == ["model: other (was mock-model)"]
    later = run("--resume", "s", "three", home=home, cwd=tmp_path)
    assert events(later)[0]["model"] == "other"
    assert notices(later) == []
    # Another plan has its own model, and the saved plan keeps its choice.
    with_plan = run("--resume", "s", "four", "-f", plan, home=home, cwd=tmp_path)
    assert events(with_plan)[0]["model"] == "mock-model"
    last = run("--resume", "s", "five", home=home, cwd=tmp_path)
    assert events(last)[0]["model"] == "other"


def test_each_difference_is_one_line(tmp_path: Path, home: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    hook = str(module_folder(tmp_path, HOOK, "amplifier_module_hooks_own"))
    moved = str(module_folder(tmp_path / "b", HOOK, "amplifier_module_hooks_own"))
    plan = mock_plan(
        tmp_path,
        ["ok"],
        hooks=[{"module": "hooks-own", "source": hook}, {"module": "hooks-approval"}],
    )
    here, there = tmp_path / "a", tmp_path / "b"
    run("-f", plan, "one", "--session", "s", "--max-tokens-total", "5000", home=home, cwd=here)
    changed = (
        "--max-tokens-total",
        "9000",
        "--mode",
        "edits",
        "--set",
        "providers.provider-mock.config.chunk_size=9",
    )
    done = run(
        "--resume", "s", "two", *changed, home=home, cwd=there,
        env={"AMPLIFIER_MODULE_HOOKS_OWN": moved},
    )  # fmt: skip
    assert notices(done) == [
        f"the session was started in {here}; its tools now work in {there}",
        "providers.provider-mock.config.chunk_size: 9 (was not set)",
        "session.budget.max_tokens: 9000 (was 5000)",
        "mode: edits (was ask)",
        f"hooks-own: {moved} (was {hook})",
    ]
    assert metadata(done, "s")["modules"]["hooks-own"] == moved
    other = mock_plan(tmp_path, ["ok"], name="other.yaml")
    done = run("--resume", "s", "three", "-f", other, home=home, cwd=here)
    assert notices(done) == ["plan: test (changed since then)"]


def test_modules_of_agents_are_not_compared_with_those_of_the_session(
    tmp_path: Path, home: Path
) -> None:
    source = str(module_folder(tmp_path, HOOK, "amplifier_module_hooks_own"))
    task = {"name": "task", "input": {"agent": "it", "instruction": "work"}}
    agent = {
        "description": "works",
        "providers": [{"module": "provider-mock", "config": {"replies": ["done"]}}],
        "hooks": [{"module": "hooks-approval", "source": source}],
    }
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [task]}, "led", "again"],
        tools=["tool-task"],
        hooks=[{"module": "hooks-approval"}],
        approvals=[{"action": "allow", "tool": "task"}],
        agents={"it": agent},
    )
    done = run("-f", plan, "go", "--session", "s", home=home, cwd=tmp_path)
    assert metadata(done, "s")["modules"]["hooks-approval"] != source
    assert notices(run("--resume", "s", "go", home=home, cwd=tmp_path)) == []


@pytest.mark.parametrize(
    ("budget", "sets"),
    [
        ({"max_cost": 0.000001}, ("session.budget.max_cost=0.000001",)),
        ({"max_tokens": 9, "max_cost": None}, None),
        ({"max_cost": "all", "other": 3, "max_tokens": {}}, ()),
        ("damaged", ()),
    ],
)
def test_limits_are_restored_from_valid_metadata_only(budget: Any, sets: Any) -> None:
    restored = settings_to_restore({"budget": budget, "chosen": {"model": 3, "provider": "mock"}})
    assert (restored.provider, restored.model) == ("mock", None)
    expected = sets
    if sets is None:
        expected = ("session.budget.max_tokens=9", "session.budget.max_cost=null")
    assert restored.sets == expected
