"""`amplifier batch` with real workers, a model on loopback, and kills."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from amplifier_app.base.keys import Address, KeyStore
from amplifier_batch.input import compute_digest
from amplifier_batch.record.folder import fixed_facts
from tests.support.batches import KEY, Batches, blocks_of, small_plan, texts_of
from tests.support.cli import run_amplifier, succeed
from tests.support.conditions import Conditions
from tests.support.llm_server import Reply, Request, ScriptedLLM, Status, ToolCall, Usage
from tests.support.plans import mock_plan, module_folder
from tests.support.thorough import Scale
from tests.support.waiting import wait_until


def counting(request: Request) -> Any:
    """A model that calls a tool once for each row, and answers with the row."""
    messages = request.body["messages"]
    prompt = next(block for block in texts_of(messages) if block.startswith("row "))
    if any(block.get("type") == "tool_result" for one in messages for block in blocks_of(one)):
        return Reply(f"did {prompt}")
    effect = f"echo {prompt.split()[1]} >> effects.txt; sleep 0.05"
    return Reply(tool_calls=[ToolCall("bash", {"command": effect})])


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    with ScriptedLLM.running([counting], repeat_last=True) as server:
        yield Batches(tmp_path, server)


def test_every_row_is_a_session_with_one_line_of_results(batches: Batches) -> None:
    batches.rows(4)
    done = batches("run", "--workers", "2")
    assert (done.code, done.stdout) == (0, ""), done.stderr
    results = batches.results()
    assert {one["row"]: one["response"] for one in results} == {
        f"r{i}": f"did row r{i}" for i in range(4)
    }
    assert {one["outcome"] for one in results} == {"ok"}
    assert all(one["sandbox"] for one in results)
    assert batches.effects() == Counter({f"r{i}": 1 for i in range(4)})
    sessions = {"AMPLIFIER_SESSIONS": str(batches.folder / "out" / "sessions")}
    shown = run_amplifier("session", "show", "r3", env=sessions)
    assert "did row r3" in shown.stdout
    again = batches("run")
    assert again.code == 78
    assert "out already contains a batch" in again.stderr
    schema = json.loads(run_amplifier("schema", "batch").stdout)
    for one in results:
        jsonschema.validate(one, schema)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The worker processes of a batch."""
    found: list[int] = []
    for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process, when it has ended; what it wrote is in the message of a failure."""
    _, stderr = process.communicate(timeout=240)
    # A row whose worker was killed twice has failed.
    assert process.returncode in (0, 1, -signal.SIGKILL), stderr.decode()
    return process.returncode


def run_with_kills(batches: Batches, kills: int, seed: int) -> None:
    """Kill random workers and the parent at random moments until the batch has ended."""
    draw = random.Random(seed)
    process = batches.start("run", "--workers", "6")
    for _ in range(kills):
        time.sleep(draw.uniform(0.2, 0.8))
        if process.poll() is not None:
            if ended(process) >= 0:
                return
            process = batches.start("resume")
            continue
        victims = workers_of(process) if draw.random() < 0.6 else []
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(victims) if victims else process.pid, signal.SIGKILL)
    while ended(process) < 0:
        process = batches.start("resume")


def require_each_effect_once(batches: Batches) -> None:
    """No effect is repeated, and the transcript of a row without one has the reason."""
    effects = batches.effects()
    assert max(effects.values()) == 1, effects
    # A call that was killed or stopped before it did anything is not repeated.
    passed = {one["row"] for one in batches.results() if one["outcome"] == "ok"}
    for row in passed - set(effects):
        transcript = batches.folder / "out" / "sessions" / row / "transcript.jsonl"
        assert re.search("interrupted|not run", transcript.read_text()), row


@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_kills_lose_no_row_and_repeat_no_effect(batches: Batches, scale: Scale) -> None:
    (rows, kills), seed = scale((12, 3), (1000, 200)), 20261122
    batches.rows(rows)
    run_with_kills(batches, kills, seed)
    results = batches.results()
    assert Counter(one["row"] for one in results) == Counter({f"r{i}": 1 for i in range(rows)}), (
        seed
    )
    require_each_effect_once(batches)
    assert batches.status()["pending"] == 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_a_row_whose_worker_is_killed_twice_passes_and_all_of_it_counts(tmp_path: Path) -> None:
    used = Usage(input_tokens=100_000, output_tokens=10)

    def model(request: Request) -> Any:
        step = len(request.body["messages"]) // 2
        if step == 2:
            return Reply("answer", usage=used)
        command = f"echo step{step} >> effects.txt; sleep 30"
        return Reply(tool_calls=[ToolCall("bash", {"command": command})], usage=used)

    with ScriptedLLM.running([model], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(1)
        process = batches.start("run")
        for step in range(2):
            while not batches.effects()[f"step{step}"]:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            for worker in workers_of(process):
                os.kill(worker, signal.SIGKILL)
        assert ended(process) == 0
        each = (100_000 * 3 + 10 * 15) / 1_000_000
        assert len(server.completions) == 3
        assert batches.results()[0]["cost"]["usd"] == pytest.approx(3 * each)
        assert batches.results()[0]["steps"] == 3
        assert batches.status()["cost"]["usd"] == pytest.approx(3 * each)


def test_a_row_that_ends_its_process_keeps_its_steps_and_tokens(batches: Batches) -> None:
    plan = yaml.safe_load((batches.folder / "plan.yaml").read_text())
    module_folder(batches.folder, ENDS_ITSELF, "amplifier_module_hooks_end")
    plan["hooks"] = [{"module": "hooks-end", "source": "./amplifier-module-hooks-end"}]
    (batches.folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    batches.rows(1)
    done = batches("run")
    assert done.code == 1, done.stderr
    (result,) = batches.results()
    assert "its worker died twice" in result["error"]["message"]
    assert (result["steps"], result["exit_code"]) == (1, 1)
    assert result["usage"]["total_tokens"] > 0
    assert result["cost"]["usd"] > 0


CHANGES_ITS_SESSION = """
import gc, json

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    def seen():
        tools = coordinator.get("tools").values()
        return {
            "config": config,
            "plan": coordinator.config,
            "state": coordinator.session_state,
            "tools": [[tool.name, tool.description, tool.input_schema] for tool in tools],
            "handlers": len(coordinator.hooks.list_handlers("tool:pre")["tool:pre"]),
        }

    with open("seen.jsonl", "a") as file:
        file.write(json.dumps(seen()) + "\\n")
    with open("collecting.jsonl", "a") as file:
        rare = gc.get_threshold()[0] > 10_000
        file.write(json.dumps([gc.isenabled(), rare, gc.get_freeze_count() > 0]) + "\\n")
    coordinator.hooks.register("tool:pre", lambda event, data: None, name="mine")
    config["names"].append(coordinator.session_id)
    coordinator.config["session"]["mine"] = coordinator.session_id
    coordinator.config["tools"].append({"module": "tool-of-mine"})
    coordinator.session_state["mine"] = coordinator.session_id
    coordinator.get("tools").clear()
"""


def test_a_row_sees_nothing_that_modules_changed_in_another(batches: Batches) -> None:
    plan = yaml.safe_load((batches.folder / "plan.yaml").read_text())
    module_folder(batches.folder, CHANGES_ITS_SESSION, "amplifier_module_hooks_change")
    source = "./amplifier-module-hooks-change"
    plan["hooks"] = [{"module": "hooks-change", "source": source, "config": {"names": []}}]
    (batches.folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    batches.rows(4)
    done = batches("run", "--workers", "1")
    assert done.code == 0, done.stderr
    first, *others = map(json.loads, (batches.folder / "seen.jsonl").read_text().splitlines())
    assert len(others) == 3
    assert others == [first] * 3
    assert first["tools"]
    collecting = (batches.folder / "collecting.jsonl").read_text().splitlines()
    assert collecting == ["[true, true, true]"] * 4


ENDS_ITSELF = """
import os, pathlib, signal

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    async def end(event, data):
        flag = pathlib.Path("asked")
        if flag.exists():
            os.kill(os.getpid(), signal.SIGABRT)
        flag.touch()

    coordinator.hooks.register("provider:request", end, name="end")
"""


def test_ctrl_c_stops_and_resume_continues_the_same_sessions(batches: Batches) -> None:
    batches.rows(4)
    process = batches.start("run", "--workers", "2")
    while not batches.effects():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert b"Continue with: amplifier batch resume out" in stderr
    status = batches.status()
    assert status["pending"] > 0
    assert not status["is_running"]
    done = batches("resume")
    assert done.code == 0, done.stderr
    assert batches.effects() == Counter({f"r{i}": 1 for i in range(4)})


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_a_scheduler_that_signals_all_processes_stops_the_rows(batches: Batches) -> None:
    batches.rows(4)
    process = batches.start("run", "--workers", "2")
    while not batches.effects():
        time.sleep(0.02)
    for pid in (*workers_of(process), process.pid):
        os.kill(pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    journal = (batches.folder / "out" / "journal.jsonl").read_text().splitlines()
    released = [record for line in journal if "why" in (record := json.loads(line))]
    assert {record["why"] for record in released} == {"stopped"}
    assert batches("resume").code == 0
    assert {one["row"] for one in batches.results()} == {f"r{i}" for i in range(4)}
    require_each_effect_once(batches)


def test_the_budget_stops_the_batch_and_can_be_raised(tmp_path: Path) -> None:
    reply = Reply("answer", usage=Usage(input_tokens=100_000, output_tokens=10))
    with ScriptedLLM.running([reply], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(10)
        done = batches("run", "--workers", "2", "--max-cost", "1")
        assert done.code == 7, done.stderr
        assert "cost budget reached" in done.stderr
        assert "amplifier batch resume" in done.stderr
        first = batches.status()
        requests = len(server.completions)
        assert "amplifier batch resume out " in done.stderr
        each = first["cost"]["usd"] / requests
        # The rows that ran when the limit was reached were each in one request.
        assert 1 <= first["cost"]["usd"] <= 1 + 2 * each
        done = batches("resume", "--max-cost", "100")
        assert done.code == 0, done.stderr
        assert batches.status()["cost"]["usd"] == pytest.approx(each * len(server.completions))


def test_the_forecast_is_shown_and_stops_a_batch_that_will_cost_too_much(tmp_path: Path) -> None:
    reply = Reply("answer", usage=Usage(input_tokens=100_000, output_tokens=0))
    with ScriptedLLM.running([reply], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(30)
        done = batches("run", "--workers", "2", "--max-forecast", "5")
        assert done.code == 7, done.stderr
        assert re.search(r"will cost about \$9\.00 .*\$5 \(--max-forecast\)", done.stderr)
        assert "amplifier batch resume out --max-forecast none" in done.stderr
        status = batches.status()
        assert 20 <= status["ended"] <= 22
        # The row that was stopped has cost something, too.
        assert status["forecast"]["cost"] == pytest.approx(9.15, abs=0.16)
        shown = run_amplifier("batch", "status", str(tmp_path / "out"))
        assert re.search(r"30 rows: \$9\.\d\d \(.*\), about [\d.]+ s left", shown.stdout)
        assert status["forecast"]["seconds_left"] > 0
        done = batches("resume", "--max-forecast", "10")
        assert done.code == 0, done.stderr
        assert batches.status()["forecast"] is None


def test_a_request_that_is_in_progress_at_the_cost_limit_is_counted(tmp_path: Path) -> None:
    used = Usage(input_tokens=100_000, output_tokens=0)
    gates = {"r1": threading.Event(), "r2": threading.Event()}

    async def model(request: Request) -> Reply:
        row = re.findall(r"row (r\d)", json.dumps(request.body["messages"]))[0]
        if row == "r0":
            return Reply("answer")
        await asyncio.to_thread(gates[row].wait, 60)
        return Reply("answer", usage=used)

    with ScriptedLLM.running([model], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(3)
        process = batches.start("run", "--workers", "2", "--max-cost", "0.1")
        wait_until(lambda: len(server.completions) == 3)
        gates["r1"].set()
        journal = tmp_path / "out" / "journal.jsonl"
        # The row whose answer reaches the limit ends, or is stopped before its end.
        wait_until(lambda: len(re.findall('"(?:ended|released)"', journal.read_text())) == 2)
        gates["r2"].set()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 7, stderr
        assert batches.status()["cost"]["usd"] == pytest.approx(2 * 0.3 + 0.000105)
        done = batches("resume", "--max-cost", "none")
        assert done.code == 0, done.stderr
        # Its answer is in the session.
        assert len(server.completions) == 3


def test_a_cost_limit_is_refused_before_a_request_if_the_price_is_unknown(tmp_path: Path) -> None:
    with ScriptedLLM.running(["answer"], repeat_last=True) as server:
        batches = Batches(tmp_path, server, has_prices=False)
        batches.rows(20)
        for words in (("run", "--max-cost"), ("resume", "--max-cost", "none", "--max-forecast")):
            done = batches(*words, "1")
            assert done.code == 7, done.stderr
            assert f"cannot enforce {words[-1]}: no price known for this model" in done.stderr
        assert server.completions == []


def test_a_cost_limit_is_accepted_for_the_model_of_the_orchestrator(tmp_path: Path) -> None:
    with ScriptedLLM.running(["answer"], repeat_last=True) as server:
        batches = Batches(tmp_path, server, has_prices=False)
        batches.rows(1)
        plan = yaml.safe_load((tmp_path / "plan.yaml").read_text())
        config = plan["providers"][0]["config"]
        config.update(list_prices=True, model="house-model")
        plan["session"]["orchestrator"] = {
            "module": "loop-streaming",
            "config": {"default_model": "claude-sonnet-4-5"},
        }
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
        succeed(
            *("plan", "check", "-f", "plan.yaml", "--set", "session.budget.max_cost=1"),
            cwd=tmp_path,
            env=KEY,
        )
        done = batches("run", "--max-cost", "1")
        assert (done.code, len(server.completions)) == (0, 1), done.stderr
        assert server.completions[0].body["model"] == "claude-sonnet-4-5"


def test_commands_of_rows_do_not_get_the_address_of_a_stored_key(tmp_path: Path) -> None:
    replies = [Reply(tool_calls=[ToolCall("bash", {"command": "env"})]), "done"]
    with ScriptedLLM.running(replies, api_key="sk-stored-0123456789") as server:
        batches = Batches(tmp_path, server)
        batches.rows(1)
        KeyStore().store(
            "ANTHROPIC_API_KEY",
            server.api_key or "",
            address=Address("ANTHROPIC_BASE_URL", server.base_url),
        )
        arguments = batches.arguments("run", "--max-cost", "1")
        # With a worker that is started; elsewhere they are forked, with the state of the driver.
        succeed(*arguments, cwd=tmp_path, cold=True)
        sent = str(server.completions[1].body)
    assert "PATH=" in sent
    assert "BASE_URL" not in sent


def test_rows_run_in_folders_of_their_own(batches: Batches) -> None:
    for name in ("a", "b"):
        repository = batches.folder / "repos" / name
        repository.mkdir(parents=True)
        (repository / "name.txt").write_text(name)
        for command in (
            ["git", "init", "-q"],
            ["git", "add", "."],
            ["git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "c"],
        ):
            subprocess.run(command, cwd=repository, check=True)
        canary = repository / ".git" / "hooks" / "post-checkout"
        canary.write_text(f"#!/bin/sh\ntouch {batches.folder}/canary\n")
        canary.chmod(0o755)
    lines = [json.dumps({"id": f"r{n}", "n": n, "name": name}) for n, name in enumerate("ab")]
    (batches.folder / "rows.jsonl").write_text("\n".join(lines))
    done = batches("run", "--workdir", "clone:repos/{{name}}", "--check", "test -e name.txt")
    assert done.code == 0, done.stderr
    work = batches.folder / "out" / "work"
    assert {name: (work / name / "effects.txt").read_text() for name in ("r0", "r1")} == {
        "r0": "r0\n",
        "r1": "r1\n",
    }
    assert not (batches.folder / "repos" / "a" / "effects.txt").exists()
    assert not (batches.folder / "canary").exists()


def test_compare_names_the_changes_the_flips_and_the_verdict(batches: Batches) -> None:
    batches.plan = small_plan()
    batches.write_plan()
    batches.rows(7)
    assert batches("run").code == 0
    with (batches.folder / "plan.yaml").open("a") as file:
        file.write("instruction: Answer briefly.\n")
    what = [word if word != "out" else "other" for word in batches.arguments("run")]
    done = run_amplifier(*what, "--check", "false", "--retries", "0", cwd=batches.folder, env=KEY)
    assert done.code == 9, done.stderr
    done = run_amplifier("compare", "out", "other", cwd=batches.folder)
    assert done.code == 9, done.stdout
    assert "+instruction: Answer briefly." in done.stdout
    assert "7 rows passed in only one of them" in done.stdout
    assert " INTERVAL " in done.stdout
    assert "fewer rows pass in B (7 rows, 98% intervals)" in done.stdout
    for name in ("out", "other"):
        facts = batches.folder / name / "batch.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "prompt": None}))
    done = run_amplifier("compare", "out", "other", cwd=batches.folder)
    assert "+instruction: Answer briefly." in done.stdout
    assert "# prompt" not in done.stdout
    done = run_amplifier("compare", "out", "out", "--output", "json", cwd=batches.folder)
    found = json.loads(done.stdout)
    assert (found["verdict"], found["flips"], done.code) == ("undecided", [], 0)


def test_files_of_two_checkouts_are_compared_and_older_batches_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for checkout in ("one", "two"):
        files = tmp_path / checkout / "files"
        files.mkdir(parents=True)
        for name in ("a.py", "b.py"):
            (files / name).touch()
        what = ("batch", "run", "mock", "files", "-o", "out", "--prompt", "{name} {x} {{name}}")
        done = succeed(*what, cwd=tmp_path / checkout)
        assert done.stderr.count("warning: {name} in the prompt is sent as it is") == 1
    done = succeed("compare", "one/out", "two/out", cwd=tmp_path)
    assert "(2 rows" in done.stdout
    # Earlier versions named the files in the digest as the user did.
    monkeypatch.chdir(tmp_path / "one")
    digest = compute_digest(Path("files"), absolute=True)
    facts = {**json.loads(Path("out/batch.json").read_text()), "input_digest": digest}
    del facts["ids"]
    Path("out/batch.json").write_text(json.dumps(facts))
    first, *rest = Path("out/journal.jsonl").read_text().splitlines(keepends=True)
    begun = json.loads(first)
    begun["facts"] = fixed_facts(facts)
    Path("out/journal.jsonl").write_text(json.dumps(begun) + "\n" + "".join(rest))
    Path("out/status.json").unlink()
    done = succeed("batch", "resume", "out", cwd=tmp_path / "one")


def test_a_batch_does_not_run_over_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").touch()
    what = ("batch", "run", "mock", ".", "-o", "out", "--prompt", "{{path}}")
    assert "2 of 2 rows passed" in succeed(*what, cwd=tmp_path).stderr
    assert "2 of 2 rows passed" in succeed("batch", "resume", "out", cwd=tmp_path).stderr
    assert succeed("batch", "results", "out", cwd=tmp_path).stdout.count("\n") == 3


def test_files_that_rows_add_to_the_input_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("a.py", "c.py"):
        (tmp_path / "src" / name).touch()
    call = {"name": "bash", "input": {"command": "touch src/b.py"}}
    replies = [{"tool_calls": [call], "usage": {"cost_usd": "0.10"}}, "done"]
    prices = {"input": 0, "output": 0}
    config = {"replies": replies, "on_end": "repeat", "prices": prices}
    mock = {"module": "provider-mock", "config": config}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(small_plan(mock)))
    what = ("batch", "run", "plan.yaml", "src/**/*.py", "-o", "out", "--prompt", "{{path}}")
    options = ("--approve", "allow", "--workers", "1", "--max-cost", "0.15")
    assert run_amplifier(*what, *options, cwd=tmp_path).code == 7
    assert (tmp_path / "src" / "b.py").exists()
    done = succeed("batch", "resume", "out", "--max-cost", "5", cwd=tmp_path)
    assert "2 of 2 rows passed" in done.stderr
    table = succeed("batch", "results", "out", cwd=tmp_path).stdout.splitlines()
    assert [line.split(",")[1] for line in table] == ["row", "a.py", "c.py"]
    assert succeed("batch", "score", "out", "--score", "x=echo 1", cwd=tmp_path).code == 0


def test_a_batch_continued_without_its_key_names_it(batches: Batches) -> None:
    batches.plan["extends"] = "default"  # whose other providers would stand in
    batches.write_plan()
    batches.rows(10)
    done = batches("run", "--max-cost", "0.00001")
    assert done.code == 7, done.stderr
    arguments = batches.arguments("resume", "--max-cost", "none")
    no_key: dict[str, str | None] = {"ANTHROPIC_API_KEY": None}
    done = run_amplifier(*arguments, cwd=batches.folder, env=no_key, timeout=120)
    assert done.code == 78, done.stderr
    assert "the plan changed since the batch began" in done.stderr
    assert "provider-anthropic skipped: set ANTHROPIC_API_KEY" in done.stderr


def test_a_refused_key_stops_the_batch_at_once(tmp_path: Path) -> None:
    with ScriptedLLM.running([Status(401)], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(50)
        done = batches("run")
        assert done.code == 4, done.stderr
        assert "0 of 50 rows have ended" in done.stderr
        assert batches.status()["pending"] == 50


def test_resume_refuses_what_has_changed_and_names_it(batches: Batches) -> None:
    batches.rows(2)
    succeed("plan", "lock", "-f", "plan.yaml", cwd=batches.folder)
    (lock,) = batches.folder.glob("*.lock*")
    assert batches("run", "--locked").code == 0
    for changed, file, old, new in (
        ("plan", "plan.yaml", "", "instruction: Something else.\n"),
        ("input", "rows.jsonl", '"n": 1', '"n": 2'),
        ("lock file", lock.name, "", "\n"),
        ("'repeat' in out/batch.json", "out/batch.json", '"repeat": 1', '"repeat": 2'),
    ):
        path = batches.folder / file
        before = path.read_text()
        path.write_text(before.replace(old, new) if old else before + new)
        done = batches("resume")
        assert done.code == 78, changed
        assert f"{changed} changed since the batch began" in done.stderr
        path.write_text(before)
    assert batches("resume").code == 0


def test_a_disk_that_takes_no_more_loses_nothing(tmp_path: Path) -> None:
    rows = 20
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": "r{n}"}}\n' for n in range(rows)))
    run = ("batch", "run", "mock", "rows.jsonl", "-o", "out", "--prompt", "{{id}}")
    limited = Conditions(limits={"RLIMIT_FSIZE": 8_000})
    done = run_amplifier(*run, cwd=tmp_path, conditions=limited)
    assert done.code == 6, done.stderr
    assert "cannot write" in done.stderr
    assert "Free some space, then continue with: amplifier batch resume" in done.stderr
    assert "Traceback" not in done.stderr
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert 0 < before.count(b"\n") < rows
    done = succeed("batch", "resume", "out", cwd=tmp_path)
    after = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert after.startswith(before)
    found = [json.loads(line)["row"] for line in after.splitlines()]
    assert sorted(found) == sorted(f"r{n}" for n in range(rows))


def test_an_input_on_stdin_is_private_and_moves_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o755)
    run = ("batch", "run", "mock", "-", "-o", "out", "--prompt", "{{t}}")
    invalid = run_amplifier(*run, cwd=tmp_path, stdin='{"t": 1')
    assert "invalid JSON" in invalid.stderr
    assert list((tmp_path / "out").iterdir()) == []
    succeed(*run, cwd=tmp_path, stdin='{"id": 1, "t": "one"}\n{"id": 2, "t": "two"}')
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "out").iterdir()} == {0}
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    resumed = succeed("batch", "resume", "../moved", cwd=tmp_path / "elsewhere")
    assert "2 of 2 rows passed" in resumed.stderr


@pytest.mark.thorough
def test_limits_are_changed_while_the_batch_runs(tmp_path: Path) -> None:
    gate = threading.Event()

    async def held(request: Request) -> Reply:
        await asyncio.to_thread(gate.wait, 60)
        if len(request.body["messages"]) > 1:
            return Reply("answer")
        return Reply(tool_calls=[ToolCall("bash", {"command": "true"})])

    with ScriptedLLM.running([held], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(6)
        # Less than one answer costs.
        process = batches.start("run", "--workers", "1", "--max-cost", "0.00001")
        wait_until(lambda: len(server.completions) == 1)
        what = ("set", "--workers", "4", "--max-cost", "none", "--output", "json")
        shown = json.loads(batches(*what).stdout)
        limits = dict.fromkeys(("max_cost", "max_forecast", "stop_after"))
        assert shown == {"schema_version": 1, "workers": 4, **limits}
        wait_until(lambda: len(server.completions) == 4)
        gate.set()
        assert ended(process) == 0
        done = batches("set", "--max-cost", "2.50", "--stop-after", "10%")
        assert [line.split() for line in done.stdout.splitlines()[1:]] == [
            ["workers", "4"],
            ["cost", "of", "all", "rows", "$2.50"],
            ["forecast", "of", "all", "rows", "no", "limit"],
            ["failed", "rows", "10%"],
        ]
        done = batches("set", "--max-cost", "none")
        assert "no limit" in done.stdout
        assert batches("set", "--stop-after", "x").code == 2


def test_a_prompt_too_long_for_the_model_is_noted_in_the_results(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "a", "prompt": "x " * 450_000}))
    plan = mock_plan(tmp_path, ["short"])
    succeed("batch", "run", plan, "rows.jsonl", "-o", "out", cwd=tmp_path)
    (result,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    (notice,) = result["notices"]
    assert notice.startswith("context compacted: 225k → "), notice


def test_repeated_rows_have_sessions_checks_and_costs_of_their_own(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return Reply("answer", usage=Usage(input_tokens=1000, output_tokens=0))

    with ScriptedLLM.running([answer], repeat_last=True) as server:
        batches = Batches(tmp_path, server)
        batches.rows(2)
        flag = tmp_path / "fixed"
        failing = f"test -e {flag} || ! grep -q '\"n\": 1' $AMPLIFIER_ROW_FILE"
        done = batches("run", "--repeat", "3", "--check", failing, "--retries", "0")
        assert done.code == 9, done.stderr
        assert "3 of 6 runs failed: 3 check_failed; pass@1 50.0% (" in done.stderr
        expected = Counter((f"r{i}", n) for i in range(2) for n in (1, 2, 3))
        assert Counter((one["row"], one["repeat"]) for one in batches.results()) == expected
        assert len({one["session_id"] for one in batches.results()}) == 6
        status = batches.status()
        assert (status["rows"], status["repeat"], status["runs"], status["ended"]) == (2, 3, 6, 6)
        assert [(rate["k"], rate["rows"]) for rate in status["pass_rates"]] == [
            (1, 2),
            (2, 2),
            (3, 2),
        ]
        assert status["cost"]["usd"] == pytest.approx(0.003 * len(server.completions))
        assert "r1 (run 3)" in batches("report").stdout
        junit = batches("report", "--format", "junit").stdout
        assert 'tests="6" failures="3" errors="0"' in junit
        flag.touch()
        assert batches("retry", "--only", "check_failed").code == 0
        attempts = {(one["row"], one["attempts"]) for one in batches.results()}
        assert attempts == {("r0", 1), ("r1", 2)}
        assert Counter((one["row"], one["repeat"]) for one in batches.results()) == expected
        assert len(server.completions) == 9
        assert batches.status()["cost"]["usd"] == pytest.approx(0.003 * 9)
