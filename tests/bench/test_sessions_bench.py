"""What listing 10,000 sessions costs next to listing 10; the target is twice as much, once indexed.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_sessions_bench.py``; see `processes`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.processes import Bench, compare

pytestmark = pytest.mark.thorough


def make_sessions(root: Path, count: int) -> None:
    for number in range(count):
        folder = root / f"20260101-{number:06d}-abcdef"
        folder.mkdir(parents=True)
        facts = {
            **{"schema_version": 2, "id": folder.name, "project": f"/p/{number % 7}"},
            **{"title": f"Title {number}", "prompts": number % 9, "model": "some-model"},
            "updated": f"2026-01-01T00:{number % 60:02d}:00.000+00:00",
        }
        (folder / "metadata.json").write_text(json.dumps(facts))
        (folder / "transcript.jsonl").write_text('{"role": "user", "content": "hi"}\n')


def test_list(benchmark: Any, tmp_path: Path) -> None:
    count = 50 if benchmark.disabled else 10_000
    for name in ("many", "few"):
        (tmp_path / name).mkdir()
    many = Bench("http://127.0.0.1:9", tmp_path / "many")
    few = Bench("http://127.0.0.1:9", tmp_path / "few")
    make_sessions(many.sessions, count)
    make_sessions(few.sessions, 10)
    command = ("session", "list", "--all", "-n", "10")
    many.command(*command)
    own, _ = compare(
        benchmark, lambda: many.command(*command), lambda: few.command(*command), rounds=9
    )
    assert len(own.stdout.splitlines()) == 11
    benchmark.extra_info["sessions"] = count
