"""Batches against a model on loopback, of rows whose prompts are `row r0`, `row r1`, and so on."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from amplifier_batch.record.folder import BatchFolder, find_waiting
from amplifier_batch.record.progress import WAITING
from amplifier_batch.statistics.summary import totals
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import ScriptedLLM

KEY: dict[str, str | None] = {"ANTHROPIC_API_KEY": "test-key"}


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a message of a request."""
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    return (block["text"] for one in messages for block in blocks_of(one) if "text" in block)


FREE = {"module": "provider-mock", "config": {"prices": {"input": 0, "output": 0}}}


def small_plan(provider: dict[str, Any] = FREE) -> dict[str, Any]:
    """A plan with few modules, since every row mounts all of them."""
    return {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [provider],
        "tools": [{"module": "tool-bash"}],
    }


class Batches:
    """Runs a batch in the folder `out`."""

    env = KEY
    # One worker costs least; tests of several ask for them.
    options: tuple[str, ...] = ("--approve", "allow", "--workers", "1")

    def __init__(self, folder: Path, server: ScriptedLLM, *, has_prices: bool = True) -> None:
        self.folder = folder
        self.server = server
        config: dict[str, Any] = {"base_url": server.base_url, "max_retries": 0}
        config["prices"] = {"input": 3, "output": 15} if has_prices else None
        self.plan = small_plan({"module": "provider-anthropic", "config": config})
        self.write_plan()

    def write_plan(self) -> None:
        (self.folder / "plan.yaml").write_text(yaml.safe_dump(self.plan))

    def rows(self, number: int) -> None:
        """Write the input."""
        lines = (json.dumps({"id": f"r{i}", "n": i}) for i in range(number))
        (self.folder / "rows.jsonl").write_text("\n".join(lines))

    def arguments(self, command: str, *more: str) -> tuple[str, ...]:
        if command != "run":
            return ("batch", command, "out", *more)
        what = ("plan.yaml", "rows.jsonl", "-o", "out", "--prompt", "row r{{n}}")
        return ("batch", "run", *what, *self.options, *more)

    def __call__(self, command: str, *more: str) -> Finished:
        arguments = self.arguments(command, *more)
        return run_amplifier(*arguments, cwd=self.folder, env=self.env, timeout=240)

    def start(self, command: str, *more: str, **options: Any) -> subprocess.Popen[bytes]:
        arguments = self.arguments(command, *more)
        return start_amplifier(*arguments, cwd=self.folder, env=self.env, **options)

    def results(self) -> list[dict[str, Any]]:
        lines = (self.folder / "out" / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def effects(self) -> Counter[str]:
        """How often the command of each row ran."""
        file = self.folder / "effects.txt"
        return Counter(file.read_text().split() if file.exists() else [])

    def status(self) -> dict[str, Any]:
        """Return the status that `batch status --output json` prints."""
        batch = BatchFolder(self.folder / "out")
        counts, running = batch.counts()
        waiting = list(find_waiting(batch)) if counts.outcomes[WAITING] else []
        questions = [row.as_data() for row in waiting]
        return {**totals(batch, counts, running=running), "questions": questions}
