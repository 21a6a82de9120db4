"""Batches that share a cache of answers, with the real program and a model on loopback that counts its requests."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base import paths
from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall

KEY = "sk-ant-api03-" + "Ab3dEf6hIj9l" * 8


def _answer(request: Request) -> Reply:
    """Call a tool once for each row, and answer with the row."""
    text = json.dumps(request.body["messages"])
    row = text.rpartition("row ")[2][:2]
    if "tool_result" in text:
        return Reply(f"did {row}")
    return Reply(tool_calls=[ToolCall("bash", {"command": f"echo {row} >> effects.txt"})])


class Cached:
    """Runs batches with `--cache`, each in a new folder."""

    def __init__(self, folder: Path, server: ScriptedLLM) -> None:
        self._folder = folder
        self._server = server
        self._runs = 0
        config = {"base_url": server.base_url, "prices": {"input": 3, "output": 15}}
        provider = {"module": "provider-anthropic", "config": {**config, "max_retries": 0}}
        plan = {**small_plan(provider), "hooks": ["hooks-status"]}
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
        (folder / "judge.yaml").write_text("extends: ./plan.yaml\ninstruction: You grade.\n")
        self.write_rows("r1", "r2", "r3")

    def write_rows(self, *names: str) -> None:
        """Write the input."""
        rows = (json.dumps({"id": f"{at}", "n": name}) for at, name in enumerate(names))
        (self._folder / "rows.jsonl").write_text("\n".join(rows))

    def __call__(self, *more: str, code: int = 0) -> int:
        """Run a batch, and return the number of requests that the model got."""
        self._runs += 1
        before = len(self._server.requests)
        what = (
            "plan.yaml",
            "rows.jsonl",
            "-o",
            self.out,
            "--prompt",
            "row {{n}}",
            "--cache",
            "--workers",
            "1",
        )
        done = self._amplifier("batch", "run", *what, "--approve", "allow", *more)
        assert done.code == code, done.stderr
        return len(self._server.requests) - before

    @property
    def out(self) -> str:
        """The folder of the last batch."""
        return f"out{self._runs}"

    def status(self) -> dict[str, Any]:
        return json.loads(self._amplifier("batch", "status", self.out, "--output", "json").stdout)

    def retry(self) -> None:
        done = self._amplifier("batch", "retry", self.out)
        assert done.code == 0, done.stderr

    def report(self) -> str:
        return self._amplifier("batch", "report", self.out).stdout

    def results(self) -> list[dict[str, Any]]:
        lines = (self._folder / self.out / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def effects(self) -> list[str]:
        """What the tool calls of all batches have written."""
        return sorted((self._folder / "effects.txt").read_text().split())

    def _amplifier(self, *arguments: str) -> Finished:
        # The time that hooks-status adds is another one each time.
        env = {"ANTHROPIC_API_KEY": KEY, "TZ": f"UTC-{self._runs}"}
        return run_amplifier(*arguments, cwd=self._folder, env=env)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Any], Cached]]:
    """Starts a model that gives one kind of answer."""
    with contextlib.ExitStack() as resources:

        def run(script: Any) -> Cached:
            server = resources.enter_context(ScriptedLLM.running([script], repeat_last=True))
            return Cached(tmp_path, server)

        yield run


def _files() -> list[Path]:
    return sorted((paths.cache_dir() / "answers").rglob("*.json"))


def test_a_changed_row_or_check_pays_for_itself_only(start: Callable[[Any], Cached]) -> None:
    batch = start(_answer)
    assert batch() == 6
    spent = batch.status()["cost"]
    assert (spent["usd"] > 0, spent["cached_calls"]) == (True, 0)
    assert batch("--check", "true") == 0
    assert batch.status()["cost"] == {"usd": 0, "cached_calls": 6}
    assert "$0 (6 answers cached)" in batch.report()
    batch.write_rows("r1", "r9", "r3")
    assert batch() == 2
    results = {one["row"]: one for one in batch.results()}
    assert [results[name]["response"] for name in "012"] == ["did r1", "did r9", "did r3"]
    assert [results[name]["usage"].get("cached_calls") for name in "012"] == [2, None, 2]
    # Tools run all the same.
    assert batch.effects() == sorted(["r1", "r2", "r3"] * 2 + ["r1", "r9", "r3"])
    assert {os.stat(file).st_mode & 0o777 for file in _files()} == {0o600}
    assert {os.stat(file.parent).st_mode & 0o777 for file in _files()} == {0o700}
    assert KEY not in "".join(file.read_text() for file in _files())


def test_runs_of_a_row_and_replies_of_a_judge_have_answers_of_their_own(
    start: Callable[[Any], Cached],
) -> None:
    replies = iter(range(100))

    def answer(request: Request) -> Reply:
        number = next(replies)
        is_judge = "Grade the answer" in json.dumps(request.body["messages"])
        return Reply(
            json.dumps({"score": number, "reason": "-"}) if is_judge else f"answer {number}"
        )

    batch = start(answer)
    batch.write_rows("r1")
    plan = "scores=[{name: tone, run: 'judge:judge.yaml', repeat: 2}]"
    assert batch("--repeat", "2", "--set", plan) == 2 + 4
    assert len({one["response"] for one in batch.results()}) == 2
    assert batch("--repeat", "2", "--set", plan) == 0
    assert batch("--repeat", "3") == 1


@pytest.mark.parametrize(
    ("reply", "code"),
    [(Reply("cut off", stop_reason="max_tokens"), 1), (Reply(f"The key is {KEY}"), 0)],
    ids=["incomplete", "secret"],
)
def test_answers_that_are_incomplete_or_have_secrets_are_not_kept(
    start: Callable[[Any], Cached], reply: Reply, code: int
) -> None:
    batch = start(reply)
    batch.write_rows("r1")
    asked = batch(code=code)
    assert asked > 0
    assert _files() == []
    assert batch(code=code) == asked


def test_a_row_that_is_retried_is_asked_again(start: Callable[[Any], Cached]) -> None:
    text = "bad"
    batch = start(lambda _: Reply(text))
    batch.write_rows("r1")
    assert batch("--check", 'grep -q good "$AMPLIFIER_ANSWER_FILE"', code=9) > 0
    text = "good"
    batch.retry()
    assert [one["response"] for one in batch.results()] == ["good"]


def _remove(file: Path) -> None:
    file.unlink()


def _damage(file: Path) -> None:
    file.write_text(file.read_text()[:-9])


def _put(stored: dict[str, Any]) -> Callable[[Path], None]:
    def put(file: Path) -> None:
        file.write_text(json.dumps(stored))

    return put


def test_an_answer_that_is_lost_is_asked_for_again(start: Callable[[Any], Cached]) -> None:
    batch = start(Reply("hello"))
    changes = (
        _remove,
        _damage,
        _put({"response": None, "is_mapping": False}),
        _put({"response": {}, "is_mapping": True}),
        _put({"response": {"content": "other", "usage": 5}, "is_mapping": True}),
    )
    batch.write_rows(*(f"r{number}" for number, _ in enumerate(changes)))
    assert batch() == len(changes)
    for change, file in zip(changes, _files(), strict=True):
        change(file)
    assert batch() == len(changes)
    assert batch() == 0
