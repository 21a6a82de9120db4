"""What a test of a plan costs, next to a session of the same plan that nothing is expected of.

Run with ``--benchmark-enable``; the target for 100 tests is 10 s, with the commands that they run.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app import api
from tests.kit.plan_tests.support import run_tests, write_tests
from tests.support.plans import mock_plan

pytestmark = pytest.mark.thorough

EXAMPLE = Path(__file__).parents[2] / "examples" / "testing"


def _count(benchmark: Any) -> int:
    """Without measuring, a few show that it works."""
    return 100 if benchmark.enabled else 2


def test_tests_of_the_example(benchmark: Any, tmp_path: Path) -> None:
    count = _count(benchmark)
    data = yaml.safe_load((EXAMPLE / "review.test.yaml").read_text(encoding="utf-8"))
    copies = [{**one, "name": f"{one['name']} {n}"} for n in range(12) for one in data["tests"]]
    file = tmp_path / "review.test.yaml"
    file.write_text(yaml.safe_dump({**data, "tests": copies[:count]}), encoding="utf-8")
    shutil.copy(EXAMPLE / "review.yaml", tmp_path)
    ended = benchmark.pedantic(run_tests, args=(file,))
    assert [one.status for one in ended] == ["passed"] * count


def test_tests_without_commands(benchmark: Any, tmp_path: Path) -> None:
    count = _count(benchmark)
    file = write_tests(tmp_path, *[{"expect": {"answer": "done"}}] * count)
    ended = benchmark.pedantic(run_tests, args=(file,))
    assert [one.status for one in ended] == ["passed"] * count


def test_sessions_without_tests(benchmark: Any, tmp_path: Path) -> None:
    tools = [{"module": "tool-filesystem"}, {"module": "tool-bash"}]
    plan = mock_plan(tmp_path, ["done"], tools=tools, hooks=[{"module": "hooks-approval"}])

    async def run(count: int) -> None:
        loaded = api.load_plan(plan)
        for _ in range(count):
            assert (await api.run(loaded, "Do it.", save=False)).text == "done"

    benchmark.pedantic(lambda: asyncio.run(run(_count(benchmark))))
