"""`amplifier batch run --economy` against the batch APIs of both vendors on loopback, with kills."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.batches import Batches, small_plan
from tests.support.cli import run_amplifier
from tests.support.llm.batches import Batch, Fate
from tests.support.llm_server import Reply, Request, ScriptedLLM, Status, ToolCall
from tests.support.plans import module_folder
from tests.support.thorough import Scale
from tests.support.waiting import wait_until

USD = 10 * 3e-6 + 5 * 15e-6
"""The normal price of an answer of the model."""

_RESULT = re.compile(r'"type": ?"(tool_result|function_call_output)"|"role": ?"tool"')

VENDORS = [
    "anthropic",
    *(pytest.param(vendor, marks=pytest.mark.thorough) for vendor in ("chat", "responses")),
]


def working(steps: int) -> Callable[[Request], Any]:
    """A model that runs a command in each step and then answers with the row."""

    def answer(request: Request) -> Any:
        text = json.dumps(request.body)
        row = re.findall(r"row (r\d+)", text)[0]
        done = len(_RESULT.findall(text))
        if done == steps:
            return f"did {row}"
        command = f"echo {row}.{done} >> effects.txt"
        return Reply(tool_calls=[ToolCall("bash", {"command": command})])

    return answer


class Economy(Batches):
    """Runs a batch at batch prices."""

    options = ("--approve", "allow", "--economy")

    def __init__(self, folder: Path, server: ScriptedLLM, vendor: str) -> None:
        self.folder = folder
        self.server = server
        self.sent = server.batches
        config: dict[str, Any] = {"prices": {"input": 3, "output": 15}, "model": "some-model"}
        if vendor == "anthropic":
            module = "provider-anthropic"
            config["base_url"] = server.base_url
        else:
            module = "provider-openai"
            config |= {"base_url": server.openai_base_url, "api": vendor}
            self.env = {"OPENAI_API_KEY": "test-key"}
        self.plan = small_plan({"module": module, "config": config})

    def arguments(self, command: str, *more: str) -> tuple[str, ...]:
        self.write_plan()
        return super().arguments(command, *more)

    def results(self) -> dict[str, dict[str, Any]]:
        lines = (self.folder / "out" / "results.jsonl").read_text().splitlines()
        return {one["row"]: one for one in map(json.loads, lines)}

    def journal(self) -> list[dict[str, Any]]:
        file = self.folder / "out" / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def check_each_step_was_paid_once(
        self, rows: int, steps: int, *, was_stopped: bool = False
    ) -> None:
        """Every row has its answer, each of its requests was answered once, and each command ran once.

        If the batch was stopped, a command that had not begun then did not run, and the model was informed.
        """
        results = self.results()
        assert {name: one["response"] for name, one in results.items()} == {
            f"r{i}": f"did r{i}" for i in range(rows)
        }
        asked = [json.dumps(body) for body in self.sent.answered]
        counted = Counter(
            (re.findall(r"row (r\d+)", text)[0], len(_RESULT.findall(text))) for text in asked
        )
        assert counted == {(f"r{i}", step): 1 for i in range(rows) for step in range(steps + 1)}
        effects = {f"r{i}.{step}": 1 for i in range(rows) for step in range(steps)}
        for left_out in effects.keys() - self.effects() if was_stopped else ():
            row, _, _ = left_out.partition(".")
            transcript = self.folder / "out" / "sessions" / row / "transcript.jsonl"
            assert re.search("interrupted|not run", transcript.read_text()), left_out
            del effects[left_out]
        assert self.effects() == effects
        for one in results.values():
            assert one["cost"]["usd"] == pytest.approx((steps + 1) * USD / 2)


@contextmanager
def economy(folder: Path, vendor: str = "anthropic", steps: int = 2) -> Generator[Economy]:
    with ScriptedLLM.running([working(steps)], repeat_last=True) as server:
        yield Economy(folder, server, vendor)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("vendor", VENDORS)
def test_rows_go_together_step_by_step_and_only_what_failed_is_sent_again(
    tmp_path: Path, scale: Scale, vendor: str
) -> None:
    rows, steps = scale(3, 200), 2

    def fate(batch: Batch, custom_id: str) -> Fate:
        number = int(custom_id.rpartition("-")[2])
        if batch is not run.sent.all[0] or number > 1:
            return "answered"
        return "expired" if number else "errored"

    with economy(tmp_path, vendor, steps) as run:
        run.rows(rows)
        run.sent.fate = fate
        done = run("run")
        assert done.code == 0, done.stderr
        assert not run.server.completions, "nothing is asked at the normal price"
        run.check_each_step_was_paid_once(rows, steps)
        # The rows whose first request failed are one step behind the others.
        assert [len(batch.requests) for batch in run.sent.all] == [rows, rows, rows, 2]
        assert f"waiting for batch {run.sent.all[0].id} with {rows} requests" in done.stderr


@pytest.mark.parametrize(
    "vendor", ["anthropic", pytest.param("responses", marks=pytest.mark.thorough)]
)
def test_a_kill_while_a_batch_is_waited_for_loses_and_doubles_nothing(
    tmp_path: Path, vendor: str
) -> None:
    with economy(tmp_path, vendor) as run:
        run.rows(2)
        process = run.start("run")
        wait_until(lambda: len(run.sent.all) == 1 and run.sent.all[0].has_ended, process=process)
        run.sent.seconds = None  # The second batch does not end.
        wait_until(lambda: "sent" in [one["event"] for one in run.journal()[-1:]], process=process)
        wait_until(lambda: len(run.sent.all) == 2, process=process)
        wait_until(lambda: run.journal()[-1]["event"] == "sent", process=process)
        process.kill()
        process.communicate()
        # A second run that is stopped with Ctrl-C leaves the batch to a third one.
        process = run.start("resume")
        polls = len(run.server.requests)
        wait_until(lambda: len(run.server.requests) > polls + 1, process=process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert f"{run.sent.all[1].id} continues; 'resume' gets its answers".encode() in stderr
        shown = run("status").stdout
        assert ", at batch prices\n" in shown
        assert shown.count("waiting for batch ") == 1
        assert f"waiting for batch {run.sent.all[1].id} with 2 requests, sent " in shown
        (batch,) = json.loads(run("status", "--output", "json").stdout)["open_batches"]
        assert (batch["id"], batch["requests"]) == (run.sent.all[1].id, 2)
        run.sent.seconds = 0
        done = run("resume")
        assert done.code == 0, done.stderr
        assert "waiting" not in run("status").stdout
        assert ", at batch prices\n" in run("report").stdout
        assert len(run.sent.all) == 3
        run.check_each_step_was_paid_once(2, 2)


KILLS_ITSELF = """
import os, pathlib, signal

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    async def kill(event, data):
        flag = pathlib.Path("killed")
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    coordinator.hooks.register(config["event"], kill, name="kill")
"""


def killed_at(event: str, folder: Path) -> dict[str, Any]:
    """A hook that kills its process at the first such event."""
    module_folder(folder, KILLS_ITSELF, "amplifier_module_hooks_kill")
    source = "./amplifier-module-hooks-kill"
    return {"module": "hooks-kill", "source": source, "config": {"event": event}}


def test_an_answer_that_was_counted_and_then_lost_is_not_counted_twice(tmp_path: Path) -> None:
    with economy(tmp_path, steps=1) as run:
        # The answer is counted by then, and not yet in the conversation.
        run.plan["hooks"] = [killed_at("provider:response", tmp_path)]
        run.rows(2)
        done = run("run")
        assert done.code == 0, done.stderr
        assert "died" in [one.get("why") for one in run.journal()]
        run.check_each_step_was_paid_once(2, 1)
        status = json.loads(run("status", "--output", "json").stdout)
        assert status["cost"]["usd"] == pytest.approx(4 * USD / 2)


def test_an_answer_with_a_schema_is_not_asked_for_again_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object", "required": ["row"]}')
    with ScriptedLLM.running(['{"row": 7}'], repeat_last=True) as server:
        run = Economy(tmp_path, server, "anthropic")
        run.plan["hooks"] = [killed_at("prompt:complete", tmp_path)]
        run.rows(1)
        done = run("run", "--schema", "schema.json")
        assert done.code == 0, done.stderr
        assert "died" in [one.get("why") for one in run.journal()]
        assert len(run.sent.answered) == 1
        assert run.results()["r0"]["data"] == {"row": 7}


@pytest.mark.thorough
def test_shards_whose_batches_are_open_are_merged_and_resumed(tmp_path: Path) -> None:
    with economy(tmp_path) as run:
        run.rows(3)
        for shard in ("1/2", "2/2"):
            run.sent.seconds = 0 if shard == "1/2" else None
            process = run.start("run", "--shard", shard)
            if shard == "2/2":
                wait_until(lambda: len(run.sent.all) == 4, process=process)
                wait_until(lambda: run.journal()[-1]["event"] == "sent", process=process)
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            (tmp_path / "out").rename(tmp_path / f"part-{shard[0]}")
        merged = run_amplifier("batch", "merge", "part-1", "part-2", "-o", "out", cwd=tmp_path)
        assert "2 of 3 rows in out" in merged.stderr
        assert run.sent.all[-1].id in run("status").stdout
        run.sent.seconds = 0
        done = run("resume")
        assert done.code == 0, done.stderr
        run.check_each_step_was_paid_once(3, 2)


@pytest.mark.parametrize("vendor", ["anthropic", pytest.param("chat", marks=pytest.mark.thorough)])
def test_a_batch_whose_id_was_lost_in_a_crash_is_found_again(tmp_path: Path, vendor: str) -> None:
    with economy(tmp_path, vendor, steps=0) as run:
        run.rows(2)
        run.sent.seconds = 1  # It has not ended when it is found.
        process: list[subprocess.Popen[bytes]] = []

        def kills(request: Request) -> bool:
            if request.method == "POST" and request.path.endswith("/batches") and process:
                os.kill(process.pop().pid, signal.SIGKILL)
                return True
            return False

        run.sent.loses = kills
        process.append(running := run.start("run"))
        running.communicate(timeout=60)
        assert running.returncode == -signal.SIGKILL
        assert run.journal()[-1]["event"] == "sending"
        done = run("resume")
        assert done.code == 0, done.stderr
        assert len(run.sent.all) == 1
        run.check_each_step_was_paid_once(2, 0)


def test_an_answer_that_is_lost_and_busy_polls_cost_nothing(tmp_path: Path) -> None:
    faults = {
        "POST": [Status(529)],
        "GET": [Status(429, headers={"retry-after": "0.1"})],
    }
    lost: list[str] = []

    def fault(request: Request) -> Status | None:
        known = faults[request.method]
        is_list = request.path.endswith("/batches") and request.method == "GET"
        return known.pop(0) if known and not is_list else None

    def loses(request: Request) -> bool:
        lost.append(request.path)
        return len(lost) == 2  # after a look for it in the list

    with economy(tmp_path, steps=0) as run:
        run.rows(2)
        run.sent.fault, run.sent.loses = fault, loses
        done = run("run")
        assert done.code == 0, done.stderr
        assert "trying again" in done.stderr
        assert len(run.sent.all) == 1
        run.check_each_step_was_paid_once(2, 0)


@pytest.mark.thorough
def test_at_the_deadline_what_is_not_answered_is_asked_at_the_normal_price(tmp_path: Path) -> None:
    with economy(tmp_path, steps=1) as run:
        run.rows(3)
        run.sent.seconds = None
        process = run.start("run", "--deadline", "4s")
        wait_until(lambda: run.sent.all, process=process)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        (batch,) = run.sent.all
        assert batch.is_cancelled
        # One request was answered before it was cancelled.
        assert (len(run.sent.answered), len(run.server.completions)) == (1, 5)
        costs = sorted(one["cost"]["usd"] for one in run.results().values())
        assert costs == pytest.approx([1.5 * USD, 2 * USD, 2 * USD])


@pytest.mark.parametrize(
    "vendor", ["anthropic", pytest.param("responses", marks=pytest.mark.thorough)]
)
def test_a_refused_batch_stops_with_its_reason_and_can_be_resumed(
    tmp_path: Path, vendor: str
) -> None:
    with economy(tmp_path, vendor, steps=0) as run:
        run.rows(2)
        run.sent.enqueued = 1
        if vendor == "anthropic":
            run.sent.fault = lambda request: Status(400, message="Enqueued token limit reached")
        done = run("run")
        assert done.code == 5, done.stderr
        assert "Enqueued token limit reached" in done.stderr
        assert "amplifier batch resume out" in done.stderr
        run.sent.enqueued, run.sent.fault = None, lambda request: None
        done = run("resume")
        assert done.code == 0, done.stderr
        run.check_each_step_was_paid_once(2, 0)


def test_the_cost_limit_of_the_batch_counts_batch_prices(tmp_path: Path) -> None:
    with economy(tmp_path, steps=3) as run:
        run.rows(2)
        done = run("run", "--max-cost", f"{1.9 * USD:f}")
        assert done.code == 7, done.stderr
        assert [len(batch.requests) for batch in run.sent.all] == [2, 2]
        done = run("resume", "--max-cost", "1")
        assert done.code == 0, done.stderr
        run.check_each_step_was_paid_once(2, 3, was_stopped=True)


def test_sub_agents_ask_in_the_same_batches(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        text = json.dumps(request.body)
        row = re.findall(r"row (r\d+)", text)[0]
        if "You help." in text:
            return f"helped {row}"
        if _RESULT.search(text):
            return f"did {row}"
        call = {"agent": "helper", "instruction": f"help row {row}"}
        return Reply(tool_calls=[ToolCall("task", call)])

    with ScriptedLLM.running([answer], repeat_last=True) as server:
        run = Economy(tmp_path, server, "anthropic")
        run.plan["tools"] = [{"module": "tool-task"}]
        run.plan["agents"] = {"helper": {"description": "Helps.", "instruction": "You help."}}
        run.rows(2)
        done = run("run")
        assert done.code == 0, done.stderr
        assert [len(batch.requests) for batch in run.sent.all] == [2, 2, 2]
        assert not server.completions
        assert run.results()["r0"]["cost"]["usd"] == pytest.approx(3 * USD / 2)


def test_a_provider_without_batches_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(
        yaml.safe_dump(
            {
                "session": {"orchestrator": "loop-basic", "context": "context-simple"},
                "providers": [{"module": "provider-mock"}],
            }
        )
    )
    (tmp_path / "rows.txt").write_text("a\nb")
    what = ("batch", "run", "plan.yaml", "rows.txt", "-o", "out", "--economy")
    done = run_amplifier(*what, cwd=tmp_path)
    assert done.code == 78, done.stderr
    assert "provider 'mock' has no batches" in done.stderr
    assert not (tmp_path / "out").exists()
    done = run_amplifier(*what[:-1], "--deadline", "1h", cwd=tmp_path)
    assert done.code == 2, done.stderr
    assert "--deadline requires a batch that is run with --economy" in done.stderr
    done = run_amplifier(*what, "--engine", "ray", cwd=tmp_path)
    assert done.code == 2, done.stderr
    assert "--economy and --engine ray are mutually exclusive" in done.stderr
