"""What a long stream on a terminal costs, and a chat until its prompt is painted.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_terminal_bench.py``; see `processes` for
the environment whose figures count. The targets are 1.2 times the CPU of the bare program for a stream,
and twice that of a prompt of prompt_toolkit.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.bench.processes import PAINTED, Bench, compare
from tests.support.llm_server import Reply, ScriptedLLM

pytestmark = pytest.mark.thorough

DELTAS = 20_000


def test_deltas_on_a_terminal(benchmark: Any, tmp_path: Path) -> None:
    deltas = 200 if benchmark.disabled else DELTAS
    text = "word " * deltas
    with ScriptedLLM.running([Reply(text, deltas=deltas)], repeat_last=True) as server:
        bench = Bench(server.base_url, tmp_path)
        reader = str(tmp_path / "reader.py")
        own, bare = compare(
            benchmark,
            lambda: bench.on_terminal("amplifier", "run", "hi"),
            lambda: bench.on_terminal("python", reader),
            rounds=7,
        )
    assert bare.stdout.count(b"word") == deltas
    # What is not final yet is painted more than once.
    assert own.stdout.count(b"word") >= deltas
    benchmark.extra_info["deltas"] = deltas


def test_prompt_painted(benchmark: Any, tmp_path: Path) -> None:
    bench = Bench("http://127.0.0.1:9", tmp_path)
    own, bare = compare(
        benchmark, lambda: bench.on_terminal("amplifier", until=PAINTED), bench.hello, rounds=15
    )
    assert PAINTED in own.stdout
    assert PAINTED in bare.stdout
