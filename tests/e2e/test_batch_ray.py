"""`amplifier batch --engine ray` with a real Ray, if it is installed.

A cluster costs some 20 seconds of CPU: the default run has one local Ray and one cluster, a thorough one the rest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_batch.engines.ray import RayWorker
from tests.e2e.test_batch_e2e import counting
from tests.support.batches import KEY, Batches
from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall
from tests.support.ray_cluster import AUTHENTICATED, TOKEN, Cluster
from tests.support.small_disk import can_mount
from tests.support.waiting import wait_until

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(
    not HAS_RAY, reason="ray is not installed: .ci/run has a step for it"
)

needs_nodes = pytest.mark.skipif(not can_mount(), reason="cannot mount file systems")


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    with ScriptedLLM.running([counting], repeat_last=True) as server:
        yield Batches(tmp_path, server)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Ray with a token and one node, which shares the disk."""
    hidden = tmp_path_factory.mktemp("hidden")
    with Cluster.started(hidden, cpus=2) as cluster:
        yield cluster


def descendants(pid: int, name: str) -> list[int]:
    """The processes below one whose command line contains a name."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            with contextlib.suppress(OSError):
                if name in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(child)
                found += descendants(child, name)
    return found


def run_on(batches: Batches, address: str | None, command: str, *more: str) -> Finished:
    engine = ("--engine", "ray", *(("--address", address) if address else ()))
    return run_amplifier(
        *batches.arguments(command, *engine, *more),
        cwd=batches.folder,
        env={**KEY, **AUTHENTICATED},
        network=True,
        timeout=100,
    )


@needs_ray
def test_a_killed_worker_of_a_local_ray_loses_no_row_and_repeats_no_effect(
    batches: Batches,
) -> None:
    batches.rows(10)
    # Nothing that the workers import is in the working directory.
    (batches.folder / "amplifier_app.py").write_text("open('canary', 'w')")
    process = start_amplifier(
        *batches.arguments("run", "--engine", "ray", "--workers", "2"),
        cwd=batches.folder,
        env=KEY,
        network=True,
    )
    while not batches.effects():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    actors = descendants(process.pid, "ray::RayWorker")
    assert actors
    os.kill(actors[0], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, stdout) == (0, b""), stderr
    assert Counter(one["row"] for one in batches.results()) == {f"r{i}": 1 for i in range(10)}
    assert max(batches.effects().values()) == 1
    journal = (batches.folder / "out" / "journal.jsonl").read_text().splitlines()
    assert "died" in [json.loads(line).get("why") for line in journal]
    assert not (batches.folder / "canary").exists()
    assert b"ray" not in stderr.lower().replace(b"connecting to ray", b"")


def comparable(folder: Path) -> list[dict[str, Any]]:
    """The results of a batch without what may differ between two runs, by row."""
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for result in results:
        for key in ("duration_ms", "session_id"):
            del result[key]
        result["tools"] = [{**call, "id": None, "duration_ms": None} for call in result["tools"]]
    return sorted(results, key=lambda result: result["number"])


@pytest.mark.thorough
@needs_ray
def test_ray_shards_and_this_machine_give_the_same_results(
    batches: Batches, cluster: Cluster
) -> None:
    batches.rows(8)
    done = run_on(batches, cluster.address, "run", "--workers", "4")
    assert done.code == 0, done.stderr
    folders = [batches.folder / "out"]
    facts = json.loads((folders[0] / "batch.json").read_text())
    assert (facts["engine"], facts["address"]) == ("ray", cluster.address)
    assert batches.effects() == {f"r{i}": 1 for i in range(8)}
    shards = [("part-1", "1/4"), ("part-2", "2/4"), ("part-3", "3/4"), ("part-4", "4/4")]
    for name, shard in (*shards, ("here", "1/1")):
        what = [name if word == "out" else word for word in batches.arguments("run")]
        done = succeed(*what, "--shard", shard, cwd=batches.folder, env=KEY)
    parts = [name for name, _ in shards]
    done = succeed("batch", "merge", *parts, "-o", "all", cwd=batches.folder)
    first, *others = (comparable(batches.folder / name) for name in ("out", "here", "all"))
    assert len(first) == 8
    assert others == [first, first]


@pytest.mark.thorough
@needs_ray
def test_a_cluster_refuses_another_token(batches: Batches, cluster: Cluster) -> None:
    batches.rows(1)
    done = run_amplifier(
        *batches.arguments("run", "--engine", "ray", "--address", cluster.address),
        cwd=batches.folder,
        env={**KEY, **AUTHENTICATED, "RAY_AUTH_TOKEN": "f" * 64},
        network=True,
        timeout=100,
    )
    assert done.code == 1, done.stderr
    assert f"cannot use Ray at {cluster.address}" in done.stderr
    assert "RAY_AUTH_TOKEN" in done.stderr
    assert not batches.server.completions


@pytest.mark.thorough
@needs_ray
def test_a_batch_continues_after_its_cluster_stopped(batches: Batches, cluster: Cluster) -> None:
    batches.rows(30)
    process = start_amplifier(
        *batches.arguments(
            "run", "--engine", "ray", "--address", cluster.address, "--workers", "2"
        ),
        cwd=batches.folder,
        env={**KEY, **AUTHENTICATED},
        network=True,
    )
    while not batches.effects():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    cluster.kill_all()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert b"amplifier: the Ray cluster stopped" in stderr
    assert b"actor" not in stderr
    assert b"amplifier batch resume out" in stderr
    done = batches("resume", "--engine", "local")
    assert done.code == 0, done.stderr
    assert Counter(one["row"] for one in batches.results()) == {f"r{i}": 1 for i in range(30)}
    assert max(batches.effects().values()) == 1


class Nodes:
    """A batch on nodes that do not have its folder; the effects of its rows are in a file that they have.

    Args:
        folder: The folder of the batch.
        cluster: Its cluster.
        server: Its model, which calls a tool twice for each row.
    """

    KEY = "sk-key-that-only-the-driver-has"

    def __init__(self, folder: Path, cluster: Cluster, server: ScriptedLLM) -> None:
        self.cluster = cluster
        self.batches = Batches(folder, server)
        self.batches.options = ("--approve", "allow")
        self._file = cluster.shared / "effects.txt"
        self.batches.plan["session"]["sandbox"] = "off"
        self.batches.write_plan()

    def start(
        self, command: str, *more: str, out: str = "out", home: Path | None = None
    ) -> subprocess.Popen[bytes]:
        address = ("--engine", "ray", "--address", self.cluster.address)
        words = self.batches.arguments(command, *(address if command == "run" else ()), *more)
        return start_amplifier(
            *(out if word == "out" else word for word in words),
            cwd=self.batches.folder,
            home=home,
            env={"ANTHROPIC_API_KEY": self.KEY, **AUTHENTICATED},
            network=True,
        )

    def effects(self) -> Counter[str]:
        return Counter(self._file.read_text().split() if self._file.exists() else [])

    def homes(self) -> set[int]:
        """The nodes that have run something since the start of the test."""
        file = self.cluster.shared / "homes.txt"
        text = file.read_text() if file.exists() else ""
        return {int(number) for number in re.findall(r"node(\d+)$", text, re.MULTILINE)}

    def end(self, process: subprocess.Popen[bytes], rows: int) -> None:
        """Wait for the end, and check that each row ended once and did everything at most once."""
        stdout, stderr = process.communicate(timeout=300)
        log = (self.batches.folder / "out" / "log.txt").read_text()
        errors = [result["error"] for result in self.batches.results()]
        assert (process.returncode, stdout) == (0, b""), f"{stderr.decode()}\n{errors}\n{log}"
        names = [f"r{number}" for number in range(rows)]
        assert Counter(result["row"] for result in self.batches.results()) == dict.fromkeys(
            names, 1
        )
        assert {result["attempts"] for result in self.batches.results()} == {1}
        assert max(self.effects().values()) == 1


@pytest.fixture(scope="module")
def nodes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Ray whose head has no rows; its nodes do not have the folders of the tests."""
    with Cluster.started(tmp_path_factory.getbasetemp()) as cluster:
        yield cluster


@pytest.fixture
def nodes(tmp_path: Path, nodes_cluster: Cluster) -> Iterator[Nodes]:
    file = nodes_cluster.shared / "effects.txt"
    for used in nodes_cluster.shared.iterdir():
        used.unlink()

    def answer(request: Request) -> Any:
        text = json.dumps(request.body["messages"])
        row, done = re.findall(r"row (r\d+)", text)[0], text.count('"tool_result"')
        if done == 2:
            return Reply(f"did {row}")
        place = f"echo $HOME >> {nodes_cluster.shared}/homes.txt"
        effect = f"echo {row}-{done} >> {file}; echo {done} >> here.txt; {place}; sleep 0.5; [ ! -f large ] || cp large copy"
        return Reply(tool_calls=[ToolCall("bash", {"command": effect})])

    with ScriptedLLM.running([answer], repeat_last=True) as server:
        yield Nodes(tmp_path, nodes_cluster, server)


@needs_ray
@needs_nodes
def test_nodes_need_no_disk_in_common_and_no_key(nodes: Nodes) -> None:
    nodes.batches.rows(4)
    nodes.cluster.add_node()
    out, source = (nodes.batches.folder / name for name in ("out", "source"))
    source.mkdir()
    large = os.urandom(9_000_000)  # sent in several messages
    (source / "large").write_bytes(large)
    nodes.end(nodes.start("run", "--workdir", "copy:source"), 4)
    assert [file.read_bytes() == large for file in (out / "work").glob("*/copy")] == [True] * 4
    works = sorted((out / "work").glob("*/here.txt"))
    assert [file.read_text() for file in works] == ["0\n1\n"] * 4
    assert len(list((out / "sessions").glob("*/transcript.jsonl"))) == 4
    key = nodes.KEY.encode()
    environments = nodes.cluster.environments()
    assert TOKEN.encode() in environments
    assert key not in environments
    for folder in (out, nodes.cluster.place):
        files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        assert [file for file in files if key in file.read_bytes()] == []


@pytest.mark.thorough
@needs_ray
@needs_nodes
def test_workers_follow_the_size_of_the_cluster(nodes: Nodes) -> None:
    largest, smallest = 4, 2
    rows = 15 * largest  # more than the first nodes finish before the last one has joined
    nodes.batches.rows(rows)
    first = nodes.cluster.add_node(resources={"slot": 1})
    needs = ("--cpus", "0.5", "--resources", "slot=1")
    process = nodes.start("run", "--workdir", "fresh", "--workers", str(rows), *needs)
    wait_until(nodes.effects, 120, process=process)
    assert nodes.homes() == {first}
    more = [nodes.cluster.add_node(resources={"slot": 1}) for _ in range(largest - 1)]
    wait_until(lambda: nodes.homes() == {first, *more}, 240, process=process)
    for node in [first, *more][: largest - smallest]:
        nodes.cluster.kill(node)
    nodes.end(process, rows)


@pytest.mark.thorough
@needs_ray
@needs_nodes
def test_rows_outlive_their_nodes_and_the_driver(nodes: Nodes) -> None:
    nodes.batches.rows(8)
    lost, _ = nodes.cluster.add_node(), nodes.cluster.add_node()
    first = nodes.start("run", "--workdir", "fresh", "--workers", "4")
    wait_until(nodes.effects, 120, process=first)
    nodes.cluster.kill(lost)
    before = len(nodes.effects())
    wait_until(lambda: len(nodes.effects()) > before, 120, process=first)
    first.kill()
    first.communicate()
    nodes.end(nodes.start("resume"), 8)
    works = (nodes.batches.folder / "out" / "work").glob("*/here.txt")
    whole = [file for file in works if file.read_text() == "0\n1\n"]
    # A call that was running on the lost node is reported to the model as interrupted, and its files are lost.
    assert len(whole) >= 8 - 4


@pytest.mark.thorough
@needs_ray
@needs_nodes
@pytest.mark.skipif(importlib.util.find_spec("fsspec") is None, reason="needs fsspec")
def test_a_driver_with_another_home_goes_on_at_a_url(nodes: Nodes, tmp_path: Path) -> None:
    nodes.batches.rows(6)
    nodes.cluster.add_node()
    url, home = f"file://{tmp_path}/store", tmp_path / "second"
    first = nodes.start(
        "run", "--workdir", "fresh", "--workers", "3", out=url, home=tmp_path / "first"
    )
    wait_until(nodes.effects, 120, process=first)
    first.kill()
    first.communicate()
    second = nodes.start("resume", "--take-over", out=url, home=home)
    _, stderr = second.communicate(timeout=300)
    assert second.returncode == 0, stderr.decode()
    (file,) = home.glob("batches/*/*/results.jsonl")
    rows = [json.loads(line)["row"] for line in file.read_text().splitlines()]
    assert sorted(rows) == [f"r{number}" for number in range(6)]
    assert max(nodes.effects().values()) == 1
    assert len(list(file.parent.glob("work/*"))) == 6


def test_addresses_that_do_not_answer_or_authenticate_are_refused(batches: Batches) -> None:
    batches.rows(1)
    ray, token = ("--engine", "ray"), {"RAY_AUTH_TOKEN": TOKEN}
    unsafe = {"RAY_ADDRESS": "127.0.0.1:1", "RAY_AUTH_MODE": "disabled"}
    refusals: list[tuple[tuple[str, ...], dict[str, str], int, str]] = [
        ((*ray, "--address", "127.0.0.1:1"), {}, 78, "no token for the Ray cluster"),
        (ray, unsafe, 78, "refusing to use Ray at 127.0.0.1:1 with RAY_AUTH_MODE disabled"),
        ((*ray, "--address", "ray://host:10001"), {}, 78, "through Ray Client"),
        (
            (*ray, "--address", "127.0.0.1:1"),
            token,
            1,
            "cannot reach Ray at 127.0.0.1:1: connection refused",
        ),
        ((*ray, "--address", "here:ray"), token, 1, "cannot reach Ray at here:ray"),
        (("--address", "127.0.0.1:1"), {}, 2, "--address requires --engine ray"),
        (("--cpus", "2"), {}, 2, "--cpus requires --engine ray"),
        ((*ray, "--cpus", "0"), {}, 2, "--cpus must be greater than 0 (got 0)"),
        ((*ray, "--resources", "gpu=0"), {}, 2, "--resources: expected NAME=N"),
    ]
    for number, (options, environment, code, message) in enumerate(refusals):
        env: dict[str, str | None] = {**KEY, "HOME": str(batches.folder), **environment}
        words = [f"out{number}" if word == "out" else word for word in batches.arguments("run")]
        done = run_amplifier(*words, *options, cwd=batches.folder, env=env)
        assert (done.code, message in done.stderr) == (code, True), done.stderr
        assert code != 78 or "RAY_AUTH_TOKEN" in done.stderr or "ray job submit" in done.stderr


async def test_a_node_refuses_a_cluster_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    started = await RayWorker(str(tmp_path), "this", {}).start()
    assert "does not require a token" in str(started.problem)


@pytest.mark.thorough
@needs_ray
@needs_nodes
def test_nodes_share_the_cache_of_the_driver(nodes: Nodes) -> None:
    nodes.batches.rows(2)
    nodes.cluster.add_node()
    for out in ("first", "second"):
        process = nodes.start("run", "--cache", "--workdir", "fresh", out=out)
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr.decode()
        if out == "first":
            asked = len(nodes.batches.server.completions)
            assert asked == 6
    assert len(nodes.batches.server.completions) == asked
    lines = (nodes.batches.folder / "second" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["usage"]["cached_calls"] for line in lines] == [3, 3]
