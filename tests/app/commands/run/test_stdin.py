"""How `run` uses stdin: data is added to the prompt, an idle pipe is not waited for forever."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.conditions import Conditions
from tests.support.plans import mock_plan


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return mock_plan(tmp_path, ["ok"])


def prompt_sent() -> str:
    """Return the user message of the only session."""
    (folder,) = (Path(os.environ["AMPLIFIER_HOME"]) / "sessions").iterdir()
    transcript = (folder / "transcript.jsonl").read_text()
    records = [json.loads(line) for line in transcript.splitlines()]
    (message,) = [record for record in records if record.get("role") == "user"]
    return message["content"]


@pytest.mark.parametrize(
    ("words", "stdin", "sent"),
    [
        ([], "from a pipe\n", "from a pipe\n"),
        (["explain"], "Traceback …", "explain\n\nTraceback …"),
        (["just this"], "", "just this"),
    ],
    ids=["alone", "with a prompt", "empty"],
)
def test_piped_data_is_added_to_the_prompt(
    plan: Path, words: list[str], stdin: str, sent: str
) -> None:
    succeed("run", "-f", plan, *words, stdin=stdin)
    assert prompt_sent() == sent


def test_a_file_is_piped_data(plan: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("from a file")
    with data.open("rb") as file:
        process = start_amplifier("run", "-f", plan, "explain", stdin=file)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert prompt_sent() == "explain\n\nfrom a file"


def test_an_open_pipe_that_never_writes_does_not_hang_the_run(plan: Path) -> None:
    done = run_with_open_pipe("run", "-f", plan, "just this")
    assert done.code == 0
    assert "no data on stdin after 2 s, continuing without it" in done.stderr
    assert prompt_sent() == "just this"


def run_with_open_pipe(*arguments: str | Path) -> Finished:
    process = start_amplifier(*arguments, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    # communicate() would close the pipe, which is what this is about.
    stdout, stderr = process.stdout.read(), process.stderr.read()
    code = process.wait(60)
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    return Finished(code, stdout.decode(), stderr.decode(), Path())


def test_a_dash_reads_all_of_stdin_even_if_it_is_late(plan: Path) -> None:
    process = start_amplifier("run", "-f", plan, "explain", "-", stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.communicate(b"late", timeout=60)
    assert process.returncode == 0
    assert prompt_sent() == "explain\n\nlate"


def test_an_empty_prompt_is_a_usage_error(plan: Path) -> None:
    done = run_amplifier("run", "-f", plan, "-", stdin=" \n")
    assert done.code == 2
    assert "empty" in done.stderr


def test_invalid_bytes_are_replaced(plan: Path) -> None:
    succeed("run", "-f", plan, "x", stdin=bytes(range(1, 256)))
    assert "\x01\x02" in prompt_sent()
    assert "\ufffd" in prompt_sent()


@pytest.mark.parametrize("words", [["what is it"], ["-"], []])
def test_binary_data_is_refused(plan: Path, words: list[str]) -> None:
    done = run_amplifier("run", "-f", plan, *words, stdin=b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert (done.code, done.stdout) == (2, "")
    assert "stdin is not text" in done.stderr
    assert "--attach" in done.stderr


def test_closed_stdin_is_ignored(plan: Path) -> None:
    succeed("run", "-f", plan, "x", conditions=Conditions(closed=(0,)))
    assert prompt_sent() == "x"
