"""What one scripted prompt costs from the start of the process to its end, and answers without one.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_startup_bench.py``; see `processes` for
the environment whose figures count. The targets are twice the CPU of the bare program for a prompt,
and of an interpreter that starts and ends, twice for the version and four times for the help; 150 ms
for a completion; for a prompt that resumes 10,000 messages, 1.5 times the prompt of a new session.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.processes import Bench, compare
from tests.support.llm_server import ScriptedLLM

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "options", [[], ["--profile", "minimal"], ["--output", "json"]], ids=["", "minimal", "json"]
)
def test_one_shot(benchmark: Any, tmp_path: Path, options: list[str]) -> None:
    with ScriptedLLM.running(["hello there"], repeat_last=True) as server:
        bench = Bench(server.base_url, tmp_path)
        own, bare = compare(
            benchmark, lambda: bench.amplifier(*options, "hi"), bench.reader, rounds=15
        )
    assert b"hello there" in own.stdout
    assert bare.stdout == b"hello there"


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_answers_without_a_command(benchmark: Any, tmp_path: Path, argument: str) -> None:
    bench = Bench("http://127.0.0.1:9", tmp_path)
    own, _ = compare(benchmark, lambda: bench.command(argument), bench.interpreter, rounds=15)
    assert b"amplifier" in own.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--profile", "d"],
        ["run", "--model", "claude-o"],
        ["run", "--set", "tools.tool-bash.c"],
        ["module", "show", "tool-b"],
        ["session", "show", "2"],
    ],
    ids=" ".join,
)
def test_completion(benchmark: Any, tmp_path: Path, words: list[str]) -> None:
    bench = Bench("http://127.0.0.1:9", tmp_path)
    (bench.sessions / "20260101-120000-abcdef").mkdir(parents=True)
    own, _ = compare(benchmark, lambda: bench.completion(*words), bench.interpreter, rounds=15)
    assert own.stdout.startswith(words[-1].encode())


def test_resume(benchmark: Any, tmp_path: Path) -> None:
    messages = 20 if benchmark.disabled else 10_000
    with ScriptedLLM.running(["hello there"], repeat_last=True) as server:
        bench = Bench(server.base_url, tmp_path)
        bench.amplifier("hi")
        (session,) = (path for path in bench.sessions.iterdir() if path.is_dir())
        with (session / "transcript.jsonl").open("a", encoding="utf-8") as transcript:
            for number in range(messages // 2):
                answer = [{"type": "text", "text": f"answer {number} {'y' * 300}"}]
                asked = {"role": "user", "content": f"question {number} {'x' * 100}"}
                for message in (asked, {"role": "assistant", "content": answer}):
                    transcript.write(json.dumps(message) + "\n")
        own, new = compare(
            benchmark,
            lambda: bench.amplifier("--resume", session.name, "hi"),
            lambda: bench.amplifier("hi"),
            rounds=7,
        )
        assert len(server.completions[-1].body["messages"]) > messages
    assert own.stdout == new.stdout == b"hello there\n"
    benchmark.extra_info["messages"] = messages
