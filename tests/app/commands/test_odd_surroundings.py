"""Disks that take nothing, files that are pipes, and input that no one meant to give."""

import json
import math
import os
from pathlib import Path

import pytest

from amplifier_app.base.file_writing import write_whole
from amplifier_app.sessions.store import SessionStore
from tests.support.cli import run_amplifier, run_python, start_amplifier, succeed
from tests.support.conditions import Conditions
from tests.support.plans import mock_plan

NO_SPACE = Conditions(limits={"RLIMIT_FSIZE": 0})
"""No file can grow."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["trust", ".", "--yes"],
        ["init", "-p", "openai", "--key-stdin", "--key-in", "file", "--no-test"],
        ["profile", "use", "mock"],
        ["run", "-f", "plan.yaml", "--no-save", "--record", "calls.jsonl", "hi"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_stored_exits_with_6_and_a_hint(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / ".amplifier").mkdir()
    (tmp_path / ".amplifier" / "settings.yaml").write_text("profile: mock\n")
    mock_plan(tmp_path, ["one"])
    done = run_amplifier(*arguments, cwd=tmp_path, stdin="sk-1234567890", conditions=NO_SPACE)
    assert done.code == 6, done.stderr
    assert "Raise the limit on the size of files (ulimit -f)" in done.stderr
    assert "amplifier module validate" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["run", "--profile", "mock", "hi"], ["tool", "invoke", "--profile", "mock", "todo", "-"]],
    ids=" ".join,
)
def test_input_without_an_end_is_refused(arguments: list[str]) -> None:
    with open("/dev/zero", "rb") as endless:
        process = start_amplifier(*arguments, stdin=endless)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, b"")
    assert b"stdin has more than 64 MiB" in stderr


def test_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    write_whole(Path(f"/dev/fd/{writes}"), "to a pipe")
    assert os.read(reads, 100) == b"to a pipe"
    os.close(reads)
    os.close(writes)
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    write_whole(link, "to a device")
    assert Path("/dev/null").is_char_device()
    assert link.is_symlink()


def test_words_that_are_not_text_are_searched_for() -> None:
    done = run_amplifier("session", "search", os.fsdecode(b"\xff"))
    assert (done.code, done.stdout) == (1, "")
    assert "no session contains" in done.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no other")
def test_a_home_that_cannot_be_written_to_exits_with_6_and_a_hint() -> None:
    done = run_amplifier("run", "-P", "mock", "hi", home=Path("/proc/home"))
    assert (done.code, done.stdout) == (6, "")
    assert done.stderr.splitlines() == [
        "amplifier: cannot create /proc/home/sessions: No such file or directory",
        "  Fix its permissions, or set AMPLIFIER_HOME to a folder of your own.",
    ]
    succeed("run", "-P", "mock", "--no-save", "hi", home=Path("/proc/home"))


def test_a_home_that_is_a_file_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    for arguments in (["run", "-P", "mock", "hi"], ["session", "list"]):
        done = run_amplifier(*arguments, home=home)
        assert (done.code, done.stdout) == (78, "")
        assert done.stderr.splitlines() == [
            f"amplifier: AMPLIFIER_HOME is not a folder: {home}",
            "  Set it to a folder.",
        ]
    lines = run_amplifier("doctor", home=home).stdout.splitlines()
    failed = [line.split(maxsplit=2)[2] for line in lines if line.startswith("FAIL")]
    assert set(failed[:4]) == {f"AMPLIFIER_HOME is not a folder: {home}"}


def test_a_loop_of_links_is_not_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = run_amplifier("plan", "import", "./loop", cwd=tmp_path)
    assert done.code == 2, done.stderr
    assert "the bundle './loop' does not exist" in done.stderr


def test_completion_without_a_position_completes_the_first_word() -> None:
    asked = {
        "_AMPLIFIER_COMPLETE": "complete_bash",
        "COMP_WORDS": "amplifier\nres",
        "COMP_CWORD": "abc",
    }
    done = run_amplifier(env=asked)
    assert (done.code, done.stdout.split()) == (0, ["resume"])


def test_a_folder_whose_name_is_not_text_is_a_project(tmp_path: Path) -> None:
    """Commands list, search, export and resume what was run in it."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xff")
    os.mkdir(folder)
    Path(folder, os.fsdecode(b"\xe9.txt")).write_text("needle\n")
    calls = [
        {"name": "grep", "input": {"pattern": "needle"}},
        {"name": "list_directory", "input": {"path": "."}},
    ]
    tools = [{"module": "tool-filesystem"}, {"module": "tool-search"}]
    plan = mock_plan(tmp_path, [{"tool_calls": calls}, "done"], tools=tools)
    first = succeed("run", "-f", plan, "--session", "s", "hello", cwd=Path(folder))
    transcript = (first.home / "sessions/s/transcript.jsonl").read_text()
    assert transcript.count("udce9.txt") >= 2
    for arguments in (
        ["run", "--continue", "again"],
        ["session", "list"],
        ["session", "list", "--output", "json"],
        ["session", "search", "hello"],
        ["session", "export", "s", "--html"],
        ["session", "fork", "s"],
        ["trust", "--list"],
        ["batch", "run", plan, os.fsdecode(b"\xe9.txt"), "-o", os.fsdecode(b"out\xe9")],
        ["batch", "report", os.fsdecode(b"out\xe9")],
    ):
        done = run_amplifier(*arguments, cwd=Path(folder), home=first.home)
        assert done.code == 0, (arguments, done.stderr)
        assert arguments[:2] != ["session", "list"] or "hello" in done.stdout


@pytest.mark.parametrize("seconds", ["3.018e11", "-3e9"])
def test_a_clock_that_is_centuries_off_does_no_harm(tmp_path: Path, seconds: str) -> None:
    code = (
        "import sys, time\n"
        "from amplifier_app import cli\n"
        "from amplifier_support import clock\n"
        f"time.time = lambda: {seconds}\n"
        "clock.utc_now = lambda: clock.utc_time(time.time())\n"
        "class Broken(clock.datetime):\n"
        "    @classmethod\n"
        "    def now(cls, tz=None): raise ValueError('year 11533 is out of range')\n"
        "clock.datetime = Broken\n"
        "sys.exit(cli.main())"
    )
    plan = mock_plan(tmp_path, ["done"], hooks=[{"module": "hooks-logging"}])
    for arguments in (
        ["run", "-f", plan, "--session", "s", "hello"],
        ["session", "list"],
        *([["session", "prune", "--older", "30d", "--dry-run"]] if seconds > "0" else []),
        ["session", "export", "s", "--html"],
    ):
        done = run_python(code, *arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)


def test_edited_times_of_sessions_are_reported_or_shown(tmp_path: Path) -> None:
    times = ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", 4e18, -5, math.nan, None)
    for number, time in enumerate(times):
        saved = SessionStore().create(f"s{number}", project=str(tmp_path))
        saved.append({"role": "user", "content": "hello"})
        saved.update(prompts=1)
        saved.close()
        file = saved.path / "metadata.json"
        facts = json.loads(file.read_text())
        file.write_text(json.dumps({**facts, "created": time, "updated": time}))
    for arguments in (["list", "--all"], ["show", "s0"], ["show", "s1"], ["verify"]):
        done = run_amplifier("session", *arguments, cwd=tmp_path)
        assert done.code == 0, (arguments, done.stderr)
