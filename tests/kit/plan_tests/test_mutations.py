"""The example of the page, whose tests pass (`test_command.py`), catches what changes in its plan: a tool removed, a rule loosened, a budget raised …"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.plan_tests.support import run_tests

EXAMPLE = Path(__file__).parents[3] / "examples" / "testing"

Plan = dict[str, Any]


def _without(section: str, module: str) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        plan[section] = [entry for entry in plan[section] if entry["module"] != module]

    return change


def _set(value: Any, *path: str | int) -> Callable[[Plan], None]:
    def change(plan: Any) -> None:
        for key in path[:-1]:
            plan = plan[key]
        assert plan[path[-1]] != value
        plan[path[-1]] = value

    return change


def _drop(*path: str | int) -> Callable[[Plan], None]:
    def change(plan: Any) -> None:
        for key in path[:-1]:
            plan = plan[key]
        del plan[path[-1]]

    return change


def _cut(share: float) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        lines = plan["instruction"].splitlines()
        plan["instruction"] = "\n".join(lines[: int(len(lines) * share)]) + "\n"

    return change


def _insert(section: str, entry: Any, at: int = 0) -> Callable[[Plan], None]:
    return lambda plan: plan[section].insert(at, entry)


COST, STEPS = "stops at the limit of its cost", "stops at the limit of its steps"
AGREED = "is what we agreed on"
MUTATIONS: dict[str, tuple[str, Callable[[Plan], None]]] = {
    "files removed": (AGREED, _without("tools", "tool-filesystem")),
    "shell removed": (AGREED, _without("tools", "tool-bash")),
    "search removed": (AGREED, _without("tools", "tool-search")),
    "delegation removed": (AGREED, _without("tools", "tool-task")),
    "approval removed": (AGREED, _without("hooks", "hooks-approval")),
    "redaction removed": (AGREED, _without("hooks", "hooks-redaction")),
    "backup removed": (AGREED, _without("hooks", "hooks-backup")),
    "push no longer denied": ("publishes nothing", _drop("approvals", 0)),
    "push allowed": ("publishes nothing", _set("allow", "approvals", 0, "action")),
    "push rule made narrower": (
        "publishes nothing",
        _set("git push --force *", "approvals", 0, "command"),
    ),
    "every command allowed first": (
        "publishes nothing",
        _insert("approvals", {"action": "allow", "tool": "bash"}),
    ),
    "all paths writable": ("changes no code", _set("**", "approvals", 2, "path")),
    "edits only ask": ("changes no code", _drop("approvals", 3)),
    "tests no longer allowed": ("writes its findings", _drop("approvals", 1)),
    "cost limit raised": (COST, _set(50, "session", "budget", "max_cost")),
    "cost limit removed": (COST, _drop("session", "budget", "max_cost")),
    "step limit raised": (STEPS, _set(60, "session", "budget", "max_steps")),
    "step limit lowered": (STEPS, _set(2, "session", "budget", "max_steps")),
    "model changed": (AGREED, _set("claude-haiku-4-5", "providers", 0, "config", "model")),
    "temperature changed": (AGREED, _set(1, "providers", 0, "config", "temperature")),
    "provider changed": (AGREED, _set("provider-openai", "providers", 0, "module")),
    "provider added in front": (
        AGREED,
        _insert("providers", {"module": "provider-openai", "config": {"priority": 1}}),
    ),
    "prompt cut in half": (AGREED, _cut(0.5)),
    "last line of the prompt cut": (AGREED, _cut(0.99)),
    "prompt removed": (AGREED, _drop("instruction")),
    "sandbox off": (AGREED, _set("off", "session", "sandbox")),
    "network for commands": (AGREED, _set("all", "session", "sandbox", "network")),
    "another loop": (AGREED, _set("loop-basic", "session", "orchestrator")),
    "check removed": ("needs a report", _drop("checks")),
    "check that always passes": ("needs a report", _set("true", "checks", 0, "run")),
    "agent removed": ("leaves the tests to its agent", _drop("agents", "tester")),
    "timeout of commands raised": (AGREED, _set(3600, "tools", 1, "config", "timeout")),
}
"""What changes, and the test that fails then."""


@pytest.mark.thorough
def test_nearly_every_change_of_a_plan_is_caught(tmp_path: Path) -> None:
    original = (EXAMPLE / "review.yaml").read_text(encoding="utf-8")
    shutil.copy(EXAMPLE / "review.test.yaml", tmp_path)
    missed: list[str] = []
    for name, (test, change) in MUTATIONS.items():
        plan = yaml.safe_load(original)
        change(plan)
        (tmp_path / "review.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
        (one,) = run_tests(f"{tmp_path / 'review.test.yaml'}::{test}")
        if one.status == "passed":
            missed.append(name)
    # The promise is that 28 of 30 are caught. Nothing is expected of the description and of what agents are
    # sent: these changes are not.
    assert len(MUTATIONS) >= 30
    assert missed == []
