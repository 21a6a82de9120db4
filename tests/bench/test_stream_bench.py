"""What a long stream into a pipe costs, and a turn with a tool, in a real process.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_stream_bench.py``; see `processes` for
the environment whose figures count. The targets are 1.3 times the CPU of the bare program for a stream,
and 10 ms for a turn with a tool, the tool's processes included.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.processes import Bench, compare
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

pytestmark = pytest.mark.thorough

DELTAS = 20_000
TURNS = 100


@pytest.mark.parametrize("profile", ["default", "minimal"])
def test_deltas_into_a_pipe(benchmark: Any, tmp_path: Path, profile: str) -> None:
    deltas = 200 if benchmark.disabled else DELTAS
    text = "word " * deltas
    with ScriptedLLM.running([Reply(text, deltas=deltas)], repeat_last=True) as server:
        bench = Bench(server.base_url, tmp_path)
        own, bare = compare(
            benchmark, lambda: bench.amplifier("-P", profile, "hi"), bench.reader, rounds=7
        )
    assert own.stdout.strip() == bare.stdout.strip() == text.strip().encode()
    benchmark.extra_info["deltas"] = deltas


def reading(turn: int) -> ToolCall:
    return ToolCall("read_file", {"path": "notes.txt", "offset": turn % 20 + 1})


def running(turn: int) -> ToolCall:
    return ToolCall("bash", {"command": f"true {turn}"})


# The same call again and again would be stopped as getting nowhere.
@pytest.mark.parametrize("call", [reading, running])
def test_tool_turns(benchmark: Any, tmp_path: Path, call: Callable[[int], ToolCall]) -> None:
    turns = 2 if benchmark.disabled else TURNS
    (tmp_path / "notes.txt").write_text("a line of notes\n" * 20)
    costs: list[float] = []

    def run(calls: int) -> float:
        replies = [Reply(tool_calls=[call(turn)]) for turn in range(calls)]
        with ScriptedLLM.running([*replies, "done"]) as server:
            cost = Bench(server.base_url, tmp_path).amplifier("--max-turns", "1000", "go")
            assert len(server.completions) == calls + 1
        assert cost.stdout.strip() == b"done"
        return cost.cpu

    benchmark.pedantic(lambda: costs.append(run(turns) - run(0)), rounds=5)
    benchmark.extra_info |= {"turns": turns, "cpu_ms_per_turn": round(min(costs) / turns * 1e3, 2)}
