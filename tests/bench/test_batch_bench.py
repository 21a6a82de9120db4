"""What a row of a batch costs, next to the floor and to inspect_ai with its mock model.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_batch_bench.py``; see `processes`. With
AMPLIFIER_BENCH_INSPECT, the interpreter of an environment that has inspect_ai, the same rows run there in
the same minutes. The targets are 120 rows/s on 2 processors, 0.7 s to the first row, and with 100,000 rows less
than 50 MB, 2 s to resume, 0.3 s for the status, and 5 s for the table of results and for a comparison.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench.processes import Bench, Cost
from tests.support.llm_server import Reply, ScriptedLLM

HERE = Path(__file__).parent
INSPECT = os.environ.get("AMPLIFIER_BENCH_INSPECT")
PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
ROOT = HERE.parents[1]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PROCESSORS, reason="needs sched_getaffinity"),
]


def write_rows(folder: Path, number: int) -> Path:
    file = folder / f"rows-{number}.jsonl"
    file.write_text(
        "".join(json.dumps({"id": f"r{n}", "t": f"hello {n}"}) + "\n" for n in range(number))
    )
    return file


@contextlib.contextmanager
def processors(number: int) -> Generator[None]:
    """Let the programs that are started use so many processors."""
    os.sched_setaffinity(0, PROCESSORS[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, PROCESSORS)


class Batches:
    """Runs the same number of rows in three ways, each time in a new folder."""

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder = folder
        self._processes = processes
        self._number = 0
        self.bench = Bench("http://127.0.0.1:9", folder)

    def __call__(self, kind: str, rows: int) -> tuple[Cost, float]:
        """The cost and the wall time of one run."""
        self._number += 1
        out = self._folder / f"{kind}-{self._number}"
        started = time.monotonic()
        if kind == "amplifier":
            # With one folder for all rows, as many processes as processors; otherwise one for each worker.
            fits = self._processes <= len(PROCESSORS)
            how = (
                ["--workers", "8"]
                if fits
                else ["--workers", f"{self._processes}", "--workdir", "fresh"]
            )
            source = str(write_rows(self._folder, rows))
            cost = self.bench.command(
                *("batch", "run", "mock", source, "-o", str(out), "--prompt", "{{t}}", "-q", *how)
            )
            assert len((out / "results.jsonl").read_text().splitlines()) == rows
        else:
            interpreter = INSPECT if kind == "inspect" else sys.executable
            script = HERE / f"batch_{kind}.py"
            cost = self.bench.program(
                interpreter or "", script, str(self._processes), str(rows), out
            )
        return cost, time.monotonic() - started


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_rows_per_second(benchmark: Any, tmp_path: Path, processes: int) -> None:
    rows, few = (2, 0) if benchmark.disabled else (400, 100)
    kinds = ["floor", "amplifier", *(["inspect"] if INSPECT else [])]
    batches = Batches(tmp_path, processes)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}

    def turn() -> None:
        for kind in kinds:
            # The difference of two runs is the cost of rows without that of the start.
            small, brief = batches(kind, few) if few else (Cost(0, 0, b""), 0.0)
            large, long = batches(kind, rows)
            found[kind].append(
                ((large.cpu - small.cpu) / (rows - few), (long - brief) / (rows - few))
            )

    with processors(processes):
        benchmark.pedantic(turn, rounds=1 if benchmark.disabled else 3)
    cpu = {kind: statistics.median(cost for cost, _ in costs) for kind, costs in found.items()}
    wall = {kind: statistics.median(wall for _, wall in costs) for kind, costs in found.items()}
    benchmark.extra_info |= {
        "cpu_ms_per_row": {kind: round(cost * 1e3, 2) for kind, cost in cpu.items()},
        "rows_per_second": {kind: round(1 / each, 1) for kind, each in wall.items() if each > 0},
        "rows_per_cpu_second": {kind: round(1 / cost, 1) for kind, cost in cpu.items() if cost > 0},
    }


def test_time_to_the_first_row(benchmark: Any, tmp_path: Path) -> None:
    batches = Batches(tmp_path, 2)
    single: list[float] = []
    prompt: list[float] = []
    wall: list[float] = []

    def turn() -> None:
        cost, seconds = batches("amplifier", 1)
        single.append(cost.cpu)
        wall.append(seconds)
        prompt.append(batches.bench.amplifier("--profile", "mock", "hi").cpu)

    benchmark.pedantic(turn, rounds=1 if benchmark.disabled else 9)
    benchmark.extra_info |= {
        "cpu_ms": round(statistics.median(single) * 1e3),
        "wall_ms": round(min(wall) * 1e3),
        "ratio_to_run": round(
            statistics.median(a / b for a, b in zip(single, prompt, strict=True)), 2
        ),
    }


def test_rows_that_wait_for_a_slow_model(benchmark: Any, tmp_path: Path) -> None:
    rows, seconds = (2, 0.2) if benchmark.disabled else (100, 30.0)
    found: list[float] = []

    def cpu(delay: float) -> float:
        with ScriptedLLM.running([Reply("answer", delay=delay)], repeat_last=True) as server:
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            bench = Bench(server.base_url, folder)
            provider = {"module": "provider-anthropic", "config": {"base_url": server.base_url}}
            plan = {"extends": "default", "providers": [provider]}
            (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
            source = str(write_rows(folder, rows))
            what = ("batch", "run", "plan.yaml", source, "-o", "out", "--prompt", "{{t}}", "-q")
            cost = bench.command(*what, "--workers", f"{rows}").cpu
            results = (folder / "out" / "results.jsonl").read_text().splitlines()
            assert [json.loads(line)["outcome"] for line in results] == ["ok"] * rows
            return cost

    def turn() -> None:
        brief = 0.0 if benchmark.disabled else cpu(0.0)
        found.append(cpu(seconds) - brief)

    benchmark.pedantic(turn, rounds=1 if benchmark.disabled else 3)
    benchmark.extra_info["cpu_s_per_row_hour"] = round(
        statistics.median(found) / rows / seconds * 3600, 1
    )


def test_very_many_rows(benchmark: Any, tmp_path: Path) -> None:
    rows = 200 if benchmark.disabled else 100_000
    memory = Path("/dev/shm")
    bench = Bench("http://127.0.0.1:9", tmp_path)

    def turn() -> None:
        # In memory, so that the disk, which `test_rows_per_second` has, is left out.
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            script = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('tests.bench.batch_scale', run_name='__main__')"
            cost = bench.program(sys.executable, "-c", script, ROOT, str(rows), folder)
        found = json.loads(cost.stdout)
        assert found.pop("ended") == rows
        benchmark.extra_info |= {name: round(value, 2) for name, value in found.items()}

    benchmark.pedantic(turn, rounds=1 if benchmark.disabled else 3)
