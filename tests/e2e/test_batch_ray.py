"""`amplifier batch --engine ray` with a real Ray, if it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_app import __version__
from amplifier_batch.engines.ray import RayWorker
from amplifier_support.installation import install_command
from tests.e2e.test_batch_e2e import counting
from tests.support.batches import KEY, Batches
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import ScriptedLLM

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(
    not HAS_RAY, reason="ray is not installed: .ci/run has a step for it"
)

TOKEN = "0123456789abcdef" * 4
AUTHENTICATED = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    with ScriptedLLM.running([counting], repeat_last=True) as server:
        yield Batches(tmp_path, server)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray with a token; its processes are killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        options = f"--port={address.partition(':')[2]} --num-cpus=2 --temp-dir={folder}/r"
        more = "--include-dashboard=false --object-store-memory=100000000 --block"
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head"]
        with open(Path(folder) / "log", "wb") as log:
            head = subprocess.Popen(
                [*argv, *options.split(), *more.split()],
                env={
                    **os.environ,
                    **AUTHENTICATED,
                    "ANTHROPIC_API_KEY": "test-key",
                    "CLUSTER": folder,
                },
                cwd="/",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until = time.monotonic() + 100
            while b"Ray runtime started" not in (Path(folder) / "log").read_bytes():
                assert head.poll() is None, (Path(folder) / "log").read_text()
                assert time.monotonic() < until, (Path(folder) / "log").read_text()
                time.sleep(0.2)
            yield address
        finally:
            kill_cluster(folder)
            head.wait()


def kill_cluster(folder: str) -> None:
    """Kill what runs in the environment of a cluster."""
    mark = f"CLUSTER={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


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


@needs_ray
def test_ray_shards_and_this_machine_give_the_same_results(batches: Batches, cluster: str) -> None:
    batches.rows(8)
    done = run_on(batches, cluster, "run", "--workers", "4")
    assert done.code == 0, done.stderr
    folders = [batches.folder / "out"]
    facts = json.loads((folders[0] / "batch.json").read_text())
    assert (facts["engine"], facts["address"]) == ("ray", cluster)
    assert batches.effects() == {f"r{i}": 1 for i in range(8)}
    shards = [("part-1", "1/4"), ("part-2", "2/4"), ("part-3", "3/4"), ("part-4", "4/4")]
    for name, shard in (*shards, ("here", "1/1")):
        what = [name if word == "out" else word for word in batches.arguments("run")]
        done = run_amplifier(*what, "--shard", shard, cwd=batches.folder, env=KEY)
        assert done.code == 0, done.stderr
    parts = [name for name, _ in shards]
    done = run_amplifier("batch", "merge", *parts, "-o", "all", cwd=batches.folder)
    assert done.code == 0, done.stderr
    first, *others = (comparable(batches.folder / name) for name in ("out", "here", "all"))
    assert len(first) == 8
    assert others == [first, first]


@needs_ray
def test_a_cluster_refuses_another_token(batches: Batches, cluster: str) -> None:
    batches.rows(1)
    done = run_amplifier(
        *batches.arguments("run", "--engine", "ray", "--address", cluster),
        cwd=batches.folder,
        env={**KEY, **AUTHENTICATED, "RAY_AUTH_TOKEN": "f" * 64},
        network=True,
        timeout=100,
    )
    assert done.code == 1, done.stderr
    assert f"cannot use Ray at {cluster}" in done.stderr
    assert "RAY_AUTH_TOKEN" in done.stderr
    assert not batches.server.completions


@needs_ray
def test_a_batch_continues_after_its_cluster_stopped(batches: Batches, cluster: str) -> None:
    batches.rows(30)
    process = start_amplifier(
        *batches.arguments("run", "--engine", "ray", "--address", cluster, "--workers", "2"),
        cwd=batches.folder,
        env={**KEY, **AUTHENTICATED},
        network=True,
    )
    while not batches.effects():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    port = cluster.partition(":")[2]
    for gcs in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"--gcs_server_port={port}".encode() in (gcs / "cmdline").read_bytes():
                environment = (gcs / "environ").read_bytes().split(b"\0")
                mark = next(one for one in environment if one.startswith(b"CLUSTER="))
                kill_cluster(mark.decode().partition("=")[2])
                break
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert b"amplifier: the Ray cluster stopped" in stderr
    assert b"actor" not in stderr
    assert b"amplifier batch resume out" in stderr
    done = batches("resume", "--engine", "local")
    assert done.code == 0, done.stderr
    assert Counter(one["row"] for one in batches.results()) == {f"r{i}": 1 for i in range(30)}
    assert max(batches.effects().values()) == 1


@pytest.mark.parametrize(
    ("options", "environment", "code", "message"),
    [
        (["--engine", "ray", "--address", "127.0.0.1:1"], {}, 78, "no token for the Ray cluster"),
        (
            ["--engine", "ray"],
            {"RAY_ADDRESS": "127.0.0.1:1", "RAY_AUTH_MODE": "disabled"},
            78,
            "refusing to use Ray at 127.0.0.1:1 with RAY_AUTH_MODE disabled",
        ),
        (["--engine", "ray", "--address", "ray://host:10001"], {}, 78, "through Ray Client"),
        (
            ["--engine", "ray", "--address", "127.0.0.1:1"],
            {"RAY_AUTH_TOKEN": TOKEN},
            1,
            "cannot reach Ray at 127.0.0.1:1: connection refused",
        ),
        (
            ["--engine", "ray", "--address", "here:ray"],
            {"RAY_AUTH_TOKEN": TOKEN},
            1,
            "cannot reach Ray at here:ray",
        ),
        (["--address", "127.0.0.1:1"], {}, 2, "--address requires --engine ray"),
    ],
)
def test_addresses_that_do_not_answer_or_authenticate_are_refused(
    batches: Batches, options: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    batches.rows(1)
    env: dict[str, str | None] = {**KEY, "HOME": str(batches.folder), **environment}
    done = run_amplifier(*batches.arguments("run", *options), cwd=batches.folder, env=env)
    assert done.code == code, done.stderr
    assert message in done.stderr
    assert code != 78 or "RAY_AUTH_TOKEN" in done.stderr or "ray job submit" in done.stderr


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_the_extra_is_named_if_it_is_missing(batches: Batches) -> None:
    batches.rows(1)
    done = batches("run", "--engine", "ray")
    assert done.code == 78, done.stderr
    assert install_command("ray") in done.stderr


async def test_a_node_refuses_what_would_not_be_this_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = RayWorker(str(tmp_path), {})

    async def refusal(version: str) -> str:
        problem = await worker.start(version, "this")
        assert problem is not None
        return problem[0]

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert "does not require a token" in await refusal(__version__)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert "but 0.0.1 here" in await refusal("0.0.1")
    assert "does not have the folder" in await refusal(__version__)
    (tmp_path / "batch.json").write_text(json.dumps({"batch": "other"}))
    assert "does not have the folder" in await refusal(__version__)
