"""A run that is killed at any of its steps loses nothing, does nothing twice and leaves nothing behind."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier
from tests.support.conditions import Conditions
from tests.support.kill_points import Steps
from tests.support.plans import mock_plan
from tests.support.processes import processes_in
from tests.support.thorough import Scale
from tests.support.waiting import wait_until
from tests.support.warm_interpreter import is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="needs the warm interpreter")


def bash(call_id: str, command: str) -> dict[str, Any]:
    return {"name": "bash", "id": call_id, "input": {"command": command}}


def write(call_id: str, path: str, text: str) -> dict[str, Any]:
    return {"name": "write_file", "id": call_id, "input": {"file_path": path, "content": text}}


def effect(call_id: str, then: str = "true") -> dict[str, Any]:
    """A call that can be seen to have run, and how often."""
    return bash(call_id, f"echo {call_id} >> $${{PWD%/sub}}/effects; {then}")


REPLIES: list[Any] = [
    {"tool_calls": [effect("a"), write("w1", "kept.txt", "new\n" * 2000)]},
    {"tool_calls": [effect("b"), effect("c", "seq 30000"), effect("d", "mkdir sub; cd sub")]},
    {"tool_calls": [write("w2", "made/new.txt", "x"), effect("e")]},
    "done",
]
MODULES: dict[str, Any] = {
    "tools": [{"module": "tool-bash"}, {"module": "tool-filesystem"}],
    "hooks": [{"module": "hooks-logging"}, {"module": "hooks-backup"}],
}


class Machine:
    """A home, a project and a folder for temporary files, all of which are to be left clean."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("home", "work", "tmp"):
            (folder / name).mkdir(parents=True)
        self.work = folder / "work"
        (self.work / "kept.txt").write_text("old\n")
        (folder / "plans").mkdir()
        self.plan = mock_plan(folder / "plans", REPLIES, **MODULES)
        last: list[Any] = [{"tool_calls": [effect("z")]}, "resumed"]
        self.next_plan = mock_plan(folder / "plans", last, name="next.yaml", **MODULES)

    def run(self, plan: Path, *words: str, conditions: Conditions | None = None) -> Finished:
        return run_amplifier(
            *("run", "-f", str(plan), *words),
            home=self.folder / "home",
            cwd=self.work,
            env={"TMPDIR": str(self.folder / "tmp")},
            conditions=conditions,
        )

    def killed(self, number: int | None) -> tuple[Finished, Steps]:
        steps = Steps(self.folder / "plans" / "steps")
        wanted = Conditions(steps=str(steps.file), kill_at=number)
        return self.run(self.plan, "go", "--session", "s", conditions=wanted), steps

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.transcript().splitlines()]

    def transcript(self) -> bytes:
        file = self.folder / "home" / "sessions" / "s" / "transcript.jsonl"
        return file.read_bytes() if file.exists() else b""

    def effects(self) -> list[str]:
        file = self.work / "effects"
        return file.read_text().split() if file.exists() else []

    def next_start(self) -> None:
        """Resume the session, or if nothing of it was saved, begin it again."""
        done = self.run(self.next_plan, "go on", "--session", "s")
        assert (done.code, done.stdout) == (0, "resumed\n"), done.stderr

    def files(self) -> set[str]:
        """Every file and folder, without the random parts of names."""
        found: set[str] = set()
        for name in ("home", "work", "tmp"):
            for path in (self.folder / name).rglob("*"):
                found.add(re.sub(r"[0-9a-f]{6,}", "#", str(path.relative_to(self.folder))))
        return found


def calls_and_results(records: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    calls: list[str] = []
    results: list[str] = []
    for record in records:
        content = record.get("content")
        if record.get("role") == "tool":
            results.append(record["tool_call_id"])
        elif isinstance(content, list):
            calls += [block["id"] for block in content if block.get("type") == "tool_call"]
    return calls, results


def whole_run(folder: Path) -> tuple[int, set[str]]:
    """The number of steps of a run that is not killed, and what is left after it is resumed."""
    machine = Machine(folder)
    done, steps = machine.killed(None)
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert sorted(machine.effects()) == [*"abcde"]
    machine.next_start()
    return len(steps.names()), machine.files()


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(50 * part, marks=pytest.mark.thorough) for part in (1, 2, 3))]
)
def test_a_killed_run_loses_nothing_and_leaves_nothing(
    tmp_path: Path, scale: Scale, first: int
) -> None:
    """3 kills by default, 200 in a thorough run, at random steps; its number is the seed of each."""
    total, expected = whole_run(tmp_path / "whole")
    for kill in range(first, first + scale(3, 50)):
        number = random.Random(kill).randint(1, total)
        check(Machine(tmp_path / str(kill)), number, expected)


def check(machine: Machine, number: int, expected: set[str]) -> None:
    killed, steps = machine.killed(number)
    at = f"killed at {number}: {steps.names()[-1]}"
    # Which step comes when varies a little between runs: parallel calls end in any order.
    assert killed.code == -9 or len(steps.names()) < number, at
    wait_until(lambda: not processes_in(machine.work), 5, about=lambda: f"{at}: processes are left")
    acknowledged = steps.acknowledged().get(
        str(machine.folder / "home" / "sessions" / "s" / "transcript.jsonl"), 0
    )
    before = machine.transcript()[:acknowledged]
    assert len(before) == acknowledged, f"{at}: an acknowledged record is lost"
    calls, _ = calls_and_results([json.loads(line) for line in before.splitlines()])
    effects = machine.effects()
    assert set(effects) <= set(calls), f"{at}: it ran before its intent was saved"
    machine.next_start()
    if acknowledged:
        assert machine.transcript().startswith(before), at
        calls, results = calls_and_results(machine.records())
        assert sorted(calls) == sorted(results), at
        assert len(set(calls)) == len(calls), at
    assert machine.effects()[: len(effects)] == effects, at
    assert sorted(set(machine.effects())) == sorted(machine.effects()), f"{at}: it ran twice"
    assert machine.effects()[-1] == "z"
    assert (machine.work / "kept.txt").read_text() in ("old\n", "new\n" * 2000), at
    assert not machine.files() - expected, at
