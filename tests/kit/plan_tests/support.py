"""Tests of plans, run in this process."""

from pathlib import Path
from typing import Any

import yaml

from amplifier_app.commands.event_loop import run_loop
from amplifier_kit.plan_tests.cases import find_cases
from amplifier_kit.plan_tests.expectations import Tested, run_case
from amplifier_kit.plan_tests.running import Runner
from tests.support.plans import mock_plan


def write_tests(
    folder: Path, *tests: dict[str, Any], name: str = "a.test.yaml", **shared: Any
) -> Path:
    """A test file over `plan.yaml` in its folder; that plan is made if it is missing."""
    if not (folder / "plan.yaml").exists():
        tools = [{"module": "tool-filesystem"}, {"module": "tool-bash"}]
        hooks = [{"module": "hooks-approval"}]
        mock_plan(folder, ["unused"], tools=tools, hooks=hooks)
    data = {"plan": "plan.yaml", "prompt": "Do it.", "script": ["done"], **shared}
    if tests:
        data["tests"] = [{"name": f"test {number}", **one} for number, one in enumerate(tests, 1)]
    path = folder / name
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def run_tests(*targets: Path | str, exit_first: bool = False, **options: bool) -> list[Tested]:
    """Run tests as the command does."""

    async def run() -> list[Tested]:
        runner, ended = Runner(**options), list[Tested]()
        for case in find_cases([str(target) for target in targets]):
            ended.append(await run_case(runner, case))
            if exit_first and ended[-1].status != "passed":
                break
        return ended

    return run_loop(run())


def only(ended: list[Tested]) -> list[str]:
    """The failures of the only test: `expectation: text`."""
    (one,) = ended
    if one.error is not None:
        return [f"error: {one.error.message}"]
    return [f"{failure.what}: {' / '.join(failure.lines)}" for failure in one.failures]
