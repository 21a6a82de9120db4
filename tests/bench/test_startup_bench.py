"""What one scripted prompt costs from the start of the process to its end, and answers without one.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_startup_bench.py``; see `processes` for
the environment whose figures count. The targets are twice the CPU of the bare program for a prompt,
and of an interpreter that starts and ends, twice for the version and four times for the help.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.processes import Bench, compare
from tests.support.llm_server import ScriptedLLM


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
