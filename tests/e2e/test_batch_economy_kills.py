"""Batches at batch prices, killed at moments drawn from a seed: with sub-agents, and around a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_batch_e2e import workers_of
from tests.e2e.test_batch_economy_e2e import USD, Economy, working
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall
from tests.support.plans import module_folder
from tests.support.thorough import Scale
from tests.support.waiting import wait_until

_HELPED = re.compile(r"helped r\d+ part (\d)")
_RESULT = '"type": "tool_result"'


def delegating(parts: int) -> Callable[[Request], Any]:
    """A model that delegates the parts of a row, continues the agents that were interrupted, and answers."""

    def answer(request: Request) -> Any:
        text = json.dumps(request.body)
        (row,) = set(re.findall(r"row (r\d+)", text))
        if "You help." in text:
            (part,) = set(re.findall(r"part (\d)", text))
            if _RESULT in text:
                return f"helped {row} part {part}"
            command = f"echo {row}.{part} >> effects.txt"
            return Reply(tool_calls=[ToolCall("bash", {"command": command})])
        sessions: dict[str, str] = {}
        for call, result in _calls(request.body["messages"]):
            part = call["instruction"][-1]
            found = re.search(r"continue with session_id ([\w-]+)", result)
            sessions[part] = "" if _HELPED.search(result) else found[1] if found else "new"
        if not sessions:
            sessions = {str(part): "new" for part in range(parts)}
        tasks = [_task(row, part, session) for part, session in sessions.items() if session]
        return Reply(tool_calls=tasks) if tasks else f"did {row}"

    return answer


def _calls(messages: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    blocks = [block for one in messages for block in one["content"] if isinstance(block, dict)]
    results = {
        block["tool_use_id"]: json.dumps(block["content"])
        for block in blocks
        if block["type"] == "tool_result"
    }
    return [
        (block["input"], results[block["id"]]) for block in blocks if block["type"] == "tool_use"
    ]


def _task(row: str, part: str, session: str) -> ToolCall:
    instruction = f"help row {row} part {part}"
    if session == "new":
        return ToolCall("task", {"agent": "helper", "instruction": instruction})
    return ToolCall("task", {"session_id": session, "instruction": f"go on, {instruction}"})


class Killed(Economy):
    """A batch that is killed, and what it has paid for."""

    def with_agents(self) -> Killed:
        self.plan["tools"] = [{"module": "tool-task"}]
        self.plan["agents"] = {"helper": {"description": "Helps.", "instruction": "You help."}}
        return self

    def start_again(self, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Resume it; run it if it was stopped before there was anything to resume."""
        if (self.folder / "out" / "batch.json").exists():
            return self.start("resume")
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        return self.start("run", *options)

    def finish(self, process: subprocess.Popen[bytes], options: tuple[str, ...] = ()) -> None:
        """Resume until all rows have ended."""
        while True:
            _, stderr = process.communicate(timeout=120)
            if process.returncode not in (-signal.SIGKILL, 130):
                break
            process = self.start_again(options)
        assert process.returncode in (0, 1), stderr.decode()

    def check_each_answer_was_paid_and_counted_once(self) -> None:
        """Every answer at batch price was used, and is part of the cost.

        A request at the normal price that was under way at a kill is sent again.
        """
        results = self.results()
        for name, one in results.items():
            twice = "its worker died twice" in ((one["error"] or {}).get("message") or "")
            assert twice or one["response"] == f"did {name}", one
        asked = Counter(map(_identity, self.sent.answered))
        assert set(asked.values()) <= {1}, asked
        effects = self.effects()
        assert not effects or max(effects.values()) == 1, effects
        status = json.loads(self("status", "--output", "json").stdout)
        assert not status["open_batches"]
        counted = status["cost"]["usd"]
        assert counted == pytest.approx(sum(one["cost"]["usd"] for one in results.values()))
        normal = Counter(_identity(request.body) for request in self.server.completions)
        assert not normal.keys() & asked.keys()
        known = len(asked) * USD / 2 + len(normal) * USD
        lost = (sum(normal.values()) - len(normal)) * USD
        assert known - USD * 1e-6 <= counted <= known + lost + USD * 1e-6


def _identity(body: dict[str, Any]) -> tuple[str, ...]:
    """What a request asks for: the row, the part of a sub-agent, and the results so far."""
    text = json.dumps(body)
    part = re.findall(r"part (\d)", text)[:1] if "You help." in text else []
    (row,) = set(re.findall(r"row (r\d+)", text))
    return row, *part, *re.findall(r'"tool_use_id": "([^"]*)"', text)


@pytest.mark.thorough
def test_sub_agents_that_a_kill_interrupted_are_continued(tmp_path: Path) -> None:
    with ScriptedLLM.running([delegating(2)], repeat_last=True) as server:
        run = Killed(tmp_path, server, "anthropic").with_agents()
        run.rows(2)
        process = run.start("run")
        wait_until(lambda: run.sent.all and run.sent.all[0].has_ended, process=process)
        run.sent.seconds = None  # The batch of the sub-agents does not end.
        wait_until(lambda: len(run.sent.all) == 2, process=process)
        wait_until(lambda: run.journal()[-1]["event"] == "sent", process=process)
        process.kill()
        process.communicate()
        run.sent.seconds = 0
        done = run("resume")
        assert done.code == 0, done.stderr
        run.check_each_answer_was_paid_and_counted_once()
        # Twice two sub-agents with two requests; each parent continues them in one more.
        assert len(run.sent.answered) == 8 + 2 * 3


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", ["deadline", pytest.param("sub-agents", marks=pytest.mark.thorough)]
)
def test_kills_at_any_moment_lose_and_double_nothing(
    tmp_path: Path, scale: Scale, kind: str
) -> None:
    first = 20261122
    for seed in range(first, first + scale(1, 40)):
        print(f"seed {seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        with_agents, draw = kind == "sub-agents", random.Random(seed)
        model = delegating(draw.choice([1, 2])) if with_agents else working(2)
        with ScriptedLLM.running([model], repeat_last=True) as server:
            run = Killed(folder, server, "anthropic")
            run.rows(draw.choice([2, 3]))
            run.sent.seconds = draw.choice([0.0, 0.5, 1.5])
            options: tuple[str, ...] = ()
            if with_agents:
                run.with_agents()
            else:
                run.sent.seconds = draw.choice([0.0, 1.5, None])
                options = ("--deadline", f"{draw.choice([2, 3, 5])}s")
            run.finish(_with_kills(run, options, draw), options)
            run.check_each_answer_was_paid_and_counted_once()


def _with_kills(
    run: Killed, options: tuple[str, ...], draw: random.Random
) -> subprocess.Popen[bytes]:
    process = run.start("run", *options)
    for _ in range(draw.randint(1, 4)):
        # Not by events: what happens next must not depend on what was seen.
        time.sleep(draw.uniform(0.3, 2.2))
        if process.poll() is not None:
            if process.returncode != -signal.SIGKILL:
                break
            process.communicate()
            process = run.start_again(options)
            continue
        workers = workers_of(process) if draw.random() < 0.4 else []
        by = signal.SIGINT if not workers and draw.random() < 0.15 else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(workers) if workers else process.pid, by)
    return process


KILLS_ONE_ROW = """
import os

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    async def kill(event, data):
        if coordinator.session_id == "r1":
            os.abort()

    coordinator.hooks.register("provider:response", kill, name="kill")
"""


def test_only_the_row_that_kills_its_workers_fails_and_the_others_share_their_batches(
    tmp_path: Path,
) -> None:
    module_folder(tmp_path, KILLS_ONE_ROW, "amplifier_module_hooks_kill")
    with ScriptedLLM.running([working(1)], repeat_last=True) as server:
        run = Killed(tmp_path, server, "anthropic")
        run.plan["hooks"] = [{"module": "hooks-kill", "source": "./amplifier-module-hooks-kill"}]
        run.rows(4)
        done = run("run")
        assert done.code == 1, done.stderr
        outcomes = {name: one["outcome"] for name, one in run.results().items()}
        assert outcomes == {"r0": "ok", "r1": "error", "r2": "ok", "r3": "ok"}
        run.check_each_answer_was_paid_and_counted_once()
        # One batch for each step: no row waits until those of other workers have ended.
        assert [len(batch.requests) for batch in run.sent.all] == [4, 3]
