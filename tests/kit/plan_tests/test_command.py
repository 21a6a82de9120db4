"""`amplifier test` as its users meet it: lines, exit codes, reports; and no sockets."""

import json
import shutil
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.kit.plan_tests.support import write_tests
from tests.support.cli import run_amplifier, run_python, start_amplifier

EXAMPLE = Path(__file__).parents[3] / "examples" / "testing"

SOCKETS = """\
import sys

def watch(event, arguments):
    if event == "socket.__new__" and arguments[1] in (2, 10) or event == "socket.getaddrinfo":
        print("SOCKET", event, arguments[1:], file=sys.stderr)

sys.addaudithook(watch)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file of three tests, the second of which fails."""
    monkeypatch.chdir(tmp_path)
    write_tests(
        tmp_path,
        {"expect": {"answer": "done"}},
        {"expect": {"answer": "\x1b[31m<other> & \x07"}},
        {"prompt": "Again."},
        name="review.test.yaml",
    )
    return tmp_path


def test_a_failure_shows_what_was_expected_and_what_happened(folder: Path) -> None:
    run = run_amplifier("test", cwd=folder)
    assert run.code == 9
    lines = run.stdout.splitlines()
    assert lines[0] == "review.test.yaml .F."
    assert lines[1:6] == [
        "",
        "FAILED review.test.yaml::test 2",
        '  review.test.yaml:11: answer: expected "\\u001b[31m<other> & \\u0007"',
        '      got      "done"',
        "",
    ]
    assert lines[6].startswith("1 failed, 2 passed in ")
    # A machine that is busy may name a slow import.
    assert [line for line in run.stderr.splitlines() if " still importing " not in line] == []


def test_tests_that_pass_end_with_0(folder: Path) -> None:
    run = run_amplifier("test", "review.test.yaml::test 1", "-v", cwd=folder)
    assert (run.code, run.stderr) == (0, "")
    assert run.stdout.startswith("review.test.yaml::test 1 passed (")
    assert "1 passed in " in run.stdout


def test_the_reports_have_every_test(folder: Path) -> None:
    run = run_amplifier("test", "--output", "json", "--report", "junit=new/out.xml", cwd=folder)
    assert run.code == 9
    data = json.loads(run.stdout)
    assert (data["passed"], data["failed"], data["errors"]) == (2, 1, 0)
    first, second, _ = data["tests"]
    assert (first["id"], first["status"], first["response"]) == (
        "review.test.yaml::test 1",
        "passed",
        "done",
    )
    assert second["failures"][0]["expectation"] == "answer"
    assert second["line"] < second["failures"][0]["line"]
    suite = ElementTree.parse(folder / "new" / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    failed = suite.findall("testcase")[1]
    assert (failed.get("classname"), failed.get("name")) == ("review.test.yaml", "test 2")
    failure = failed.find("failure")
    assert failure is not None
    assert (failure.get("message") or "").startswith("answer: expected")


def test_the_first_failure_ends_the_run_if_asked(folder: Path) -> None:
    run = run_amplifier("test", "-x", cwd=folder)
    assert run.stdout.splitlines()[0] == "review.test.yaml .F"
    assert "1 failed, 1 passed, 1 not run in " in run.stdout


def test_tests_are_listed_without_running(folder: Path) -> None:
    run = run_amplifier("test", "--list", "-k", "TEST 2", cwd=folder)
    assert (run.code, run.stdout) == (0, "review.test.yaml::test 2\n")


def test_an_invalid_file_ends_with_78_before_anything_runs(folder: Path) -> None:
    (folder / "b.test.yaml").write_text("plan: plan.yaml\nprompt: x\nscritp: [x]\n")
    run = run_amplifier("test", "-v", cwd=folder)
    assert (run.code, run.stdout) == (78, "")
    assert run.stderr.startswith("amplifier: b.test.yaml:3:1: unknown key")
    assert (
        "b.test.yaml:3:1: unknown key 'scritp' in the test file; did you mean 'script'?"
        in run.stderr
    )
    assert "  3 | scritp: [x]" in run.stderr


def test_ctrl_c_reports_what_has_ended(folder: Path) -> None:
    sleep = {"bash": {"command": "sleep 60"}}
    write_tests(
        folder,
        {"name": "quick"},
        {"name": "slow", "approve": "allow", "script": [{"calls": [sleep]}, "done"]},
        {"name": "never"},
        name="slow.test.yaml",
    )
    process = start_amplifier("test", "-v", "slow.test.yaml", cwd=folder)
    assert process.stdout is not None
    first = process.stdout.readline().decode()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0].decode()
    assert first.startswith("slow.test.yaml::quick passed")
    assert rest.splitlines()[-1].startswith("1 passed, 2 not run in ")
    assert process.returncode == 130


def test_nothing_to_run_is_a_usage_error(tmp_path: Path) -> None:
    run = run_amplifier("test", cwd=tmp_path)
    assert run.code == 2
    assert "there are no tests" in run.stderr


def test_the_example_passes_without_a_socket(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "plans")
    code = f"{SOCKETS}\nfrom amplifier_app.cli import main\nmain()"
    run = run_python(code, "test", "plans", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("plans/review.test.yaml .........\n")
    assert run.stderr == ""
    # The same hook sees one that is opened.
    opened = run_python(f"{SOCKETS}\nimport socket\nsocket.socket()")
    assert opened.stderr.startswith("SOCKET socket.__new__")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("output", ["text", "json"])
def test_results_that_cannot_be_written_are_not_a_success(tmp_path: Path, output: str) -> None:
    write_tests(tmp_path, {"expect": {"answer": "done"}})
    with Path("/dev/full").open("wb") as full:
        run = run_amplifier("test", "--output", output, cwd=tmp_path, stdout=full)
    assert run.code == 6
    assert "cannot write to stdout: no space left on device" in run.stderr
