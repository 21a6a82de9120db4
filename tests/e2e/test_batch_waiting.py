"""`batch run --approve park`: rows wait for approval, are answered, and go on; with kills."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import KEY, Batches, blocks_of, texts_of
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall, Usage
from tests.support.thorough import Scale


def asking(request: Request) -> Any:
    """A model that makes one call for each row whose number is odd, again if that is allowed, and then answers."""
    messages = request.body["messages"]
    row = next(text for text in texts_of(messages) if text.startswith("row ")).split()[1]
    call = ToolCall("bash", {"command": f"echo {row} >> effects.txt; sleep 0.02"})
    usage = Usage(1000, 10)
    results = [
        block for one in messages for block in blocks_of(one) if block["type"] == "tool_result"
    ]
    is_allowed = any("- allowed: bash" in text for text in texts_of(messages[-1:]))
    if not results and int(row[1:]) % 2:
        return Reply(tool_calls=[call], usage=usage)
    if is_allowed:
        return Reply(tool_calls=[call], usage=usage)
    return Reply(f"did {row}", usage=usage)


class Batch(Batches):
    """A batch whose rows with odd numbers wait for approval."""

    options = ("--approve", "park", "--workers", "1")

    def write_plan(self) -> None:
        self.plan["hooks"] = [{"module": "hooks-approval"}]
        super().write_plan()

    def run(self, rows: int, *more: str) -> Finished:
        self.rows(rows)
        return self("run", *more)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(result["outcome"] for result in self.results())


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    with ScriptedLLM.running([asking], repeat_last=True) as server:
        yield Batch(tmp_path, server)


def test_rows_that_ask_wait_and_go_on_once_they_are_answered(batch: Batch) -> None:
    ran = batch.run(4)
    assert ran.code == 10, ran.stderr
    assert "2 of 4 rows wait for approval" in ran.stderr
    assert "amplifier batch approve out" in ran.stderr
    assert batch.outcomes == {"ok": 2, "waiting": 2}
    assert batch.effects() == {}
    waits = next(result for result in batch.results() if result["row"] == "r1")
    assert "batch approve out r1 --allow" in waits["error"]["hint"]

    # Without an answer nothing runs again.
    requests = len(batch.server.completions)
    assert batch("resume").code == 10
    assert batch("retry").code == 10
    assert len(batch.server.completions) == requests

    allowed = batch("approve", "r1", "--allow")
    assert allowed.code == 0, allowed.stderr
    assert "amplifier batch resume out" in allowed.stderr
    resumed = batch("resume")
    assert resumed.code == 10
    assert "1 of 4 rows wait" in resumed.stderr
    assert (batch.effects(), batch.outcomes) == ({"r1": 1}, {"ok": 3, "waiting": 1})

    assert batch("approve", "--all", "--deny", "--answer", "Not today.").code == 0
    assert batch("resume").code == 0
    assert (batch.effects(), batch.outcomes) == ({"r1": 1}, {"ok": 4})
    assert {result["attempts"] for result in batch.results()} == {1}
    # Each request is paid once.
    paid = len(batch.server.completions) * (1000 * 3 + 10 * 15) / 1e6
    assert batch.status()["cost"]["usd"] == pytest.approx(paid)
    assert sum(result["cost"]["usd"] for result in batch.results()) == pytest.approx(paid)


def test_rows_of_a_comparison_wait_and_go_on_with_the_same_command(batch: Batch) -> None:
    batch.rows(2)
    plans = ("plan.yaml", "plan.yaml", "rows.jsonl", "-o", "out", "--prompt", "row r{{n}}")
    words = ("compare", "run", *plans, "--approve", "park")
    ran = run_amplifier(*words, cwd=batch.folder, env=KEY)
    assert ran.code == 10, ran.stderr
    assert "not compared: 1 row " in ran.stdout
    for side in ("out/a", "out/b"):
        assert f"amplifier batch approve {side}" in ran.stderr
        succeed("batch", "approve", side, "--all", "--allow", cwd=batch.folder)
    ran = succeed(*words, cwd=batch.folder, env=KEY)
    assert "(2 rows, " in ran.stdout
    assert batch.effects() == {"r1": 2}


def test_waiting_rows_are_counted_and_listed_as_neither_passed_nor_failed(batch: Batch) -> None:
    assert batch.run(4, "--stop-after", "1").code == 10
    status = batch.status()
    assert (status["ended"], status["outcomes"]) == (4, {"ok": 2, "waiting": 2})
    assert (status["pending"], "waiting" in status) == (0, False)
    assert status["pass_rates"][0]["rows"] == 2
    assert [row["row"] for row in status["questions"]] == ["r1", "r3"]
    [question] = status["questions"][0]["questions"]
    assert (question["tool"], question["state"]) == ("bash", "waiting")
    shown = batch("status").stdout
    assert "waiting for approval" in shown
    assert "echo r1 >> effects.txt" in shown
    assert "amplifier batch approve out" in shown
    listed = batch("approve")
    assert "echo r3 >> effects.txt" in listed.stdout
    report = batch("report").stdout
    assert "echo r1" in report
    assert "| why |" not in report
    assert 'failures="0" errors="0" skipped="2"' in batch("report", "--format", "junit").stdout
    assert "batch approve" in batch("report", "--format", "html").stdout


def test_runs_of_a_row_wait_one_by_one_and_are_scored_once_they_are_answered(
    batch: Batch,
) -> None:
    assert batch.run(2, "--repeat", "2", "--score", "length=echo 7").code == 10
    scored = batch.folder / "out" / "scores.jsonl"
    assert len(scored.read_text().splitlines()) == 2
    assert batch.status()["pass_rates"][0]["rows"] == 1
    assert "2 questions of 2 rows" in batch("approve", "r1", "--allow").stderr
    assert batch("resume").code == 0
    assert batch.status()["pass_rates"][0]["rows"] == 2
    assert batch.effects() == {"r1": 2}
    assert [json.loads(line)["value"] for line in scored.read_text().splitlines()] == [7] * 4


def test_rows_of_shards_wait_in_the_merged_batch(batch: Batch) -> None:
    batch.run(2)
    merged = run_amplifier("batch", "merge", "out", "-o", "all", cwd=batch.folder, env=KEY)
    assert merged.code == 10, merged.stderr
    (batch.folder / "out").rename(batch.folder / "old")
    (batch.folder / "all").rename(batch.folder / "out")
    assert batch("approve", "--all", "--allow").code == 0
    assert batch("resume").code == 0
    assert batch.effects() == {"r1": 1}


def test_answers_to_no_row_are_errors_and_those_of_session_approve_count(batch: Batch) -> None:
    refused = batch.run(2, "--engine", "ray")
    assert refused.code == 2
    assert "--approve park and --engine ray are mutually exclusive" in refused.stderr
    batch.run(2)
    for words, code, message in (
        (("--allow",), 2, "expected the ids of rows, or --all"),
        (("r1", "--all", "--allow"), 2, "expected the ids of rows, or --all"),
        (("r0", "--allow"), 6, "row 'r0' does not wait for approval"),
        (("r1", "--allow", "--deny"), 2, "--allow cannot be used with"),
    ):
        done = batch("approve", *words)
        assert (done.code, message in done.stderr) == (code, True), done.stderr
    assert batch.status()["questions"][0]["questions"][0]["state"] == "waiting"
    [waits] = [result for result in batch.results() if result["outcome"] == "waiting"]
    answered = succeed(
        *("session", "approve", waits["session_id"], "--allow"),
        cwd=batch.folder,
        env={"AMPLIFIER_SESSIONS": "out/sessions"},
    )
    assert f"amplifier batch resume {batch.folder / 'out'}" in answered.stderr
    assert batch("resume").code == 0
    assert batch.effects() == {"r1": 1}


def test_kills_at_any_time_lose_no_row_and_run_nothing_twice(batch: Batch, scale: Scale) -> None:
    rows, draw = scale(6, 60), random.Random(5)

    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def until_ended(command: str) -> int:
        """Run a command until it ends by itself; each time it is killed later."""
        for attempt in range(200):
            process = batch.start("resume" if attempt else command, **nowhere)
            try:
                process.wait(timeout=draw.uniform(0.5, 1.5) + attempt * 0.3)
            except subprocess.TimeoutExpired:
                _kill(process, draw)
                continue
            return process.returncode
        raise AssertionError("never ended")

    batch.options = ("--approve", "park")
    batch.rows(rows)
    assert until_ended("run") == 10
    assert batch.outcomes == {"ok": rows - rows // 2, "waiting": rows // 2}
    assert batch.effects() == {}
    assert batch("approve", "--all", "--allow").code == 0
    code = until_ended("resume")
    assert code == 0, batch.outcomes
    # A call that a kill interrupted is reported to the model and not made again.
    assert set(batch.effects().values()) == {1}
    assert {*batch.effects()} <= {f"r{number}" for number in range(1, rows, 2)}
    assert [result["row"] for result in sorted(batch.results(), key=lambda one: one["number"])] == [
        f"r{number}" for number in range(rows)
    ]
    assert all(result["response"].startswith("did ") for result in batch.results())


def _kill(process: subprocess.Popen[bytes], draw: random.Random) -> None:
    """Kill the batch or all of its processes."""
    with contextlib.suppress(ProcessLookupError):
        if draw.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait(timeout=60)
    time.sleep(0.1)
