"""`pytest --amplifier`: tests of plans next to other tests; nothing without the option."""

import os
import re
import subprocess
from pathlib import Path

from tests.kit.plan_tests.support import write_tests
from tests.support.cli import run_python

PLUGINS = ("-p", "no:xdist", "-p", "no:asyncio", "-p", "no:benchmark")
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Of modules that pytest would rewrite, the interpreter this is cloned from has imported some.
    known = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return run_python(PYTEST, "--rootdir", os.curdir, *PLUGINS, *known, *arguments, cwd=folder)


def test_tests_of_plans_are_tests_of_pytest(tmp_path: Path) -> None:
    wrong = {"expect": {"answer": "other"}}
    write_tests(tmp_path, {}, {"name": "test: 2 [ü]", **wrong}, {"name": "test::3"})
    (tmp_path / "b.test.yaml").write_text("scritp: x\n")
    run = run_pytest(tmp_path, "--amplifier", "-v", "--continue-on-collection-errors")
    assert run.returncode == 1
    assert "a.test.yaml::test 1 PASSED" in run.stdout
    assert "a.test.yaml::test: 2 [ü] FAILED" in run.stdout
    assert "a.test.yaml::test:3 PASSED" in run.stdout
    assert re.search(r'^a.test.yaml:\d+: answer: expected "other"', run.stdout, re.MULTILINE)
    assert "Traceback" not in run.stdout
    assert "b.test.yaml:1:1: unknown key 'scritp'" in run.stdout
    assert "1 failed, 2 passed, 1 error" in run.stdout
    # The ids are those that select a test.
    ids = ("a.test.yaml::test:3", "a.test.yaml::test: 2 [ü]")
    again = run_pytest(tmp_path, "--amplifier", "-q", "--lf", *ids)
    assert "1 failed, 1 deselected" in again.stdout, again.stdout
