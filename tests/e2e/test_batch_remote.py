"""`amplifier batch` with its record on a real S3 server, if moto and s3fs are installed."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_batch_e2e import workers_of
from tests.support.batches import KEY, Batches, blocks_of, texts_of
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall, Usage
from tests.support.s3_server import IS_INSTALLED, S3Server
from tests.support.thorough import Scale
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason="needs s3fs and moto"),
    pytest.mark.timeout(600),
]

USED = Usage(input_tokens=1_000, output_tokens=100)
EACH = (1_000 * 3 + 100 * 15) / 1_000_000
STEPS = 3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


class Machine:
    """A machine: its home, and its checkout of the project.

    Args:
        folder: Its disk.
        url: The URL of the batch.
        env: What its clients need.
    """

    def __init__(self, folder: Path, url: str, env: dict[str, str | None]) -> None:
        self.project = folder / "project"
        self._home = folder / "home"
        self._url = url
        self._env = {**KEY, **env}

    def start(self, command: str, *more: str, **popen: Any) -> subprocess.Popen[bytes]:
        arguments = self._arguments(command, *more)
        place: dict[str, Any] = {"cwd": self.project, "home": self._home, "env": self._env}
        return start_amplifier(*arguments, **place, **popen)

    def __call__(self, command: str, *more: str) -> Finished:
        arguments = self._arguments(command, *more)
        return run_amplifier(
            *arguments, cwd=self.project, home=self._home, env=self._env, timeout=240
        )

    def _arguments(self, command: str, *more: str) -> tuple[str, ...]:
        if command != "run":
            return ("batch", command, self._url, *more)
        what = ("plan.yaml", "rows.jsonl", "-o", self._url, "--prompt", "row r{{n}}")
        return ("batch", "run", *what, "--approve", "allow", *more)

    def results(self) -> list[dict[str, Any]]:
        """The lines of results.jsonl in this machine's copy."""
        done = self("status", "--output", "json")
        assert done.code == 0, done.stderr
        (file,) = self._home.glob("batches/*/*/results.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def transcript(self, row: str) -> str:
        (file,) = self._home.glob(f"batches/*/*/sessions/{row}/transcript.jsonl")
        return file.read_text()


class Cloud:
    """Machines with the same project that have nothing but an S3 server in common, and the effects of their rows.

    Args:
        folder: The folder of the test.
        s3: The server.
        model: The model.
    """

    def __init__(self, folder: Path, s3: S3Server, model: ScriptedLLM) -> None:
        self._file = folder / "effects.txt"
        self._folder = folder
        self.model = model
        self.s3 = s3
        self.url = f"s3://{s3.bucket}/{folder.name}/batch"
        self._origin = folder / "origin"
        self._origin.mkdir()
        batches = Batches(self._origin, model)
        batches.plan["session"]["sandbox"] = "off"
        batches.write_plan()
        self._batches = batches

    def rows(self, number: int) -> None:
        self._batches.rows(number)

    def machine(self, name: str) -> Machine:
        folder = self._folder / name
        shutil.copytree(self._origin, folder / "project")
        return Machine(folder, self.url, self.s3.environment)

    def effects(self) -> Counter[str]:
        return Counter(self._file.read_text().split() if self._file.exists() else [])

    def check(self, rows: int) -> None:
        """Check on another machine that each row ended once, did everything at most once, and was counted exactly."""
        other = self.machine("other")
        results = other.results()
        assert Counter(line["row"] for line in results) == {f"r{i}": 1 for i in range(rows)}
        assert {line["outcome"] for line in results} == {"ok"}, results
        effects = self.effects()
        assert max(effects.values()) == 1, effects
        for line in results:
            row = line["row"]
            done = sum(count for effect, count in effects.items() if effect.startswith(f"{row}-"))
            lost = len(re.findall("interrupted|not run", other.transcript(row)))
            assert done + lost >= STEPS - 1, (row, effects)
            assert line["cost"]["usd"] == pytest.approx(STEPS * EACH)
        cost = json.loads(other("status", "--output", "json").stdout)["cost"]["usd"]
        assert cost == pytest.approx(rows * STEPS * EACH)


@pytest.fixture
def cloud(tmp_path: Path, s3: S3Server) -> Iterator[Cloud]:
    file = tmp_path / "effects.txt"

    def answer(request: Request) -> Any:
        messages = request.body["messages"]
        prompt = next(text for text in texts_of(messages) if text.startswith("row "))
        row = prompt.split()[1]
        done = sum(block.get("type") == "tool_result" for m in messages for block in blocks_of(m))
        if done == STEPS - 1:
            return Reply(f"did {row}", usage=USED)
        command = f"echo {row}-{done} >> {file}; sleep 0.1"
        return Reply(tool_calls=[ToolCall("bash", {"command": command})], usage=USED)

    with ScriptedLLM.running([answer], repeat_last=True) as model:
        yield Cloud(tmp_path, s3, model)
    s3.restore()


def end(process: subprocess.Popen[bytes]) -> str:
    """Wait for a batch whose rows pass, and return what it wrote."""
    stdout, stderr = process.communicate(timeout=240)
    assert (process.returncode, stdout) == (0, b""), stderr.decode()
    return stderr.decode()


def goes_on(process: subprocess.Popen[bytes], cloud: Cloud) -> bool:
    """Wait for another effect; False if the batch ended before."""
    before = len(cloud.effects())
    wait_until(lambda: len(cloud.effects()) > before or process.poll() is not None, 120)
    return process.poll() is None


def test_a_second_driver_goes_on_where_the_first_was_killed(cloud: Cloud, scale: Scale) -> None:
    (rows, kills), draw = scale((8, 3), (300, 60)), random.Random(20261128)
    cloud.rows(rows)
    machines = [cloud.machine(name) for name in ("a", "b")]
    process, used = machines[0].start("run", "--workers", "4"), 0
    for _ in range(kills):
        if not goes_on(process, cloud):
            break
        time.sleep(draw.uniform(0, 0.7))
        victims = workers_of(process) if draw.random() < 0.2 else []
        os.kill(draw.choice(victims) if victims else process.pid, signal.SIGKILL)
        if not victims:
            process.communicate()
            used = 1 - used
            process = machines[used].start("resume", "--take-over")
    end(process)
    cloud.check(rows)


@pytest.mark.thorough
def test_a_driver_that_wakes_up_is_stopped_and_repeats_nothing(cloud: Cloud) -> None:
    cloud.rows(6)
    first, second = (cloud.machine(name) for name in ("a", "b"))
    sleeping = first.start("run", "--workers", "3")
    try:
        wait_until(cloud.effects, 120, process=sleeping)
        sleeping.send_signal(signal.SIGSTOP)
        done = second("resume")
        assert done.code == 6, done.stderr
        assert f"another driver runs the batch at {cloud.url}" in done.stderr
        assert "--take-over" in done.stderr
        # The second machine has another disk, and its checkout in another place.
        gone = first.project.rename(first.project.with_name("gone"))
        end(second.start("resume", "--take-over"))
        gone.rename(first.project)
    finally:
        sleeping.send_signal(signal.SIGCONT)
    _, stderr = sleeping.communicate(timeout=120)
    assert sleeping.returncode == 6, stderr.decode()
    assert f"another driver has taken over the batch at {cloud.url}" in stderr.decode()
    assert f"amplifier batch status {cloud.url}" in stderr.decode()
    assert b"Task" not in stderr
    cloud.check(6)


@pytest.mark.thorough
def test_a_server_that_is_away_for_a_while_loses_nothing(cloud: Cloud, tmp_path: Path) -> None:
    cloud.rows(6)
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        process = cloud.machine("a").start("run", "--workers", "3", stderr=stderr)
    wait_until(cloud.effects, 120, process=process)
    cloud.s3.cut()
    before = cloud.effects()
    wait_until(lambda: f"cannot write {cloud.url}" in log.read_text(), 120, process=process)
    # At most the calls that were sealed before.
    assert sum(cloud.effects().values()) - sum(before.values()) <= 3
    cloud.s3.restore()
    process.communicate(timeout=240)
    assert process.returncode == 0, log.read_text()
    assert f"{cloud.url} works again" in log.read_text()
    assert "Task" not in log.read_text()
    cloud.check(6)


def test_every_command_takes_the_url_and_nothing_has_the_keys(cloud: Cloud) -> None:
    cloud.rows(2)
    first, second = (cloud.machine(name) for name in ("a", "b"))
    end(first.start("run"))
    again = first("run")
    assert again.code == 78
    assert f"{cloud.url} already contains a batch" in again.stderr
    done = second("results")
    assert done.stdout.count("did r") == 2, done.stderr
    assert "| ok |" in second("report").stdout
    done = second("score", "--score", "length=echo 1")
    assert done.code == 0, done.stderr
    assert "length" in first("results").stdout
    done = second("retry", "--where", "row=r1")
    assert done.code == 0, done.stderr
    assert {line["row"]: line["attempts"] for line in first.results()} == {"r0": 1, "r1": 2}
    compared = run_amplifier(
        "compare",
        cloud.url,
        cloud.url,
        cwd=first.project,
        env=cloud.s3.environment,
    )
    assert "no clear difference" in compared.stdout, compared.stderr
    keys = ("test-key", "test-secret-of-the-bucket")
    files = [file for file in first.project.parent.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert not [file for file in files if any(key.encode() in file.read_bytes() for key in keys)]
