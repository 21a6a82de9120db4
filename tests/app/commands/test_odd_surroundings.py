"""Disks that take nothing, files that are pipes, and input that no one meant to give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amplifier_app.base.atomic_write import write_whole
from tests.support.cli import run_amplifier, start_amplifier
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
    assert run_amplifier("run", "-P", "mock", "--no-save", "hi", home=Path("/proc/home")).code == 0


@pytest.mark.parametrize("arguments", [["run", "-P", "mock", "hi"], ["session", "list"]])
def test_a_home_that_is_a_file_is_reported(tmp_path: Path, arguments: list[str]) -> None:
    home = tmp_path / "home"
    home.write_text("")
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
    assert done.code == 78, done.stderr


def test_completion_without_a_position_completes_the_first_word() -> None:
    asked = {
        "_AMPLIFIER_COMPLETE": "complete_bash",
        "COMP_WORDS": "amplifier\nres",
        "COMP_CWORD": "abc",
    }
    done = run_amplifier(env=asked)
    assert (done.code, done.stdout.split()) == (0, ["resume"])
