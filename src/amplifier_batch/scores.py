"""Scores of the runs of a batch: a number or a label for each answer, from a command, a Python function or a judge.

scores.jsonl has one line for each run and score; the last one of a run counts, if it is of the same attempt:

    {"number": 1, "repeat": 1, "attempts": 1, "name": "tests", "by": DIGEST, "value": 0.5, "reason": null}

A value is missing, never zero, if the run has no answer or the scorer fails; `reason` says why.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any, cast

from amplifier_app.api import Plan, load_plan
from amplifier_app.base.errors import ConfigError, SessionError, UsageError
from amplifier_app.base.outcome import Ending
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.checks import Check, CheckRunner
from amplifier_app.runtime.sandbox import register_sandbox
from amplifier_batch.input import Row, read_batch_rows
from amplifier_batch.judging import Judgement, judge
from amplifier_batch.record.folder import WORK, BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import WAITING
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_support import journal
from amplifier_support.named_tuple import NamedTuple

SCORES = "scores.jsonl"
_ANSWERED = (Ending.OK.value, Ending.CHECK_FAILED.value)
_PYTHON, _JUDGE = "python:", "judge:"
_AT_ONCE = 8
"""Answers that judges look at at the same time."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_LABEL = 200

Value = float | str | None


class Scorer(NamedTuple):
    """A source of scores.

    Attributes:
        name: The name of the score.
        command: The shell command, `python:MODULE:FUNCTION`, `python:FILE.py:FUNCTION` or `judge:PLAN`.
        seconds: The time limit of a command.
        repeat: How often a judge is asked.
    """

    name: str
    command: str
    seconds: float = 600.0
    repeat: int = 1


class Score(NamedTuple):
    """The score of one run.

    Attributes:
        attempts: Which attempt of the run it is of.
        by: The digest of the scorer.
        value: A number or a label; None if it is missing.
        reason: Why it is missing.
        agreement: The share of a judge's replies that equal the most frequent one; None for a single one.
        cost: US dollars that a judge has cost; None if a price is unknown.
        is_judged: Whether a judge gave it.
    """

    attempts: int
    by: str
    value: Value
    reason: str | None
    agreement: float | None = None
    cost: float | None = None
    is_judged: bool = False


Scores = dict[tuple[int, int], dict[str, Score]]
"""Number and repeat of a run → its scores by name."""


def load_scorers(plan: Mapping[str, Any], given: Sequence[str]) -> list[Scorer]:
    """Return the scorers of a plan, then the ones of the command line, given as `NAME=COMMAND`.

    Raises:
        UsageError: One of the command line is invalid.
        ConfigError: Two have the same name.
    """
    scorers = [
        Scorer(
            entry.get("name", "score"),
            entry["run"],
            float(entry.get("timeout", 600)),
            int(entry.get("repeat", 1)),
        )
        for entry in plan.get("scores") or ()
    ]
    for text in given:
        name, sign, command = text.partition("=")
        if not sign or not _NAME.fullmatch(name) or not command.strip():
            hint = "For example: --score 'tests=./score.sh' or --score 'f1=python:my.scores:f1'."
            raise UsageError(f"--score: expected NAME=COMMAND, got {text!r}", hint=hint)
        scorers = [scorer for scorer in scorers if scorer.name != name]
        scorers.append(Scorer(name, command))
    return scorers


def read_scores(folder: BatchFolder) -> Scores:
    """The scores of a batch, the last one of each name.

    Raises:
        SessionError: They cannot be read.
    """
    path = folder.path / SCORES
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from error
    scores: Scores = {}
    for line in journal.readable_records(data):
        key = line.get("number", 0), line.get("repeat", 1)
        attempts, by = line.get("attempts", 1), str(line.get("by"))
        rest = (line.get(name) for name in ("value", "reason", "agreement", "cost"))
        score = Score(attempts, by, *rest, is_judged="cost" in line)
        scores.setdefault(key, {})[str(line.get("name"))] = score
    return scores


class Scoring:
    """Scores the runs of a batch.

    Args:
        scorers: What scores.
        plan: The plan, for the sandbox of commands.

    Raises:
        ConfigError: A scorer cannot be loaded.
    """

    def __init__(self, scorers: Collection[Scorer], plan: ResolvedPlan) -> None:
        self._scorers = scorers
        self._plan = plan
        self._functions = {scorer: _load(scorer) for scorer in scorers if _is_python(scorer)}
        self._judges = {scorer: _load_judge(scorer) for scorer in scorers if _is_judge(scorer)}
        self._digests = {scorer: _digest(scorer, self._functions.get(scorer)) for scorer in scorers}

    async def run(self, folder: BatchFolder, *, again: bool = False) -> int:
        """Score the runs that have ended and have no score yet; returns how many scores were given.

        Each score is on disk before the next one is computed, so an interrupt loses none.

        Args:
            folder: The batch, which must have been run in the working directory.
            again: Whether to score all runs again.

        Raises:
            ConfigError: The machine cannot enforce the sandbox, or the input has changed.
            SessionError: The results cannot be read, or the scores cannot be written.
        """
        known = {} if again else read_scores(folder)
        coordinator = ModuleCoordinator()
        register_sandbox(coordinator, self._plan.mount_plan(), self._plan)
        number, asking = 0, set[asyncio.Task[None]]()
        results = folder.results(by_number=True)
        try:
            for result, row in with_rows(results, read_batch_rows(folder.facts)):
                if result["outcome"] == WAITING:
                    continue
                done = known.get((result["number"], result["repeat"]), {})
                for scorer in self._scorers:
                    by, score = self._digests[scorer], done.get(scorer.name)
                    if score and (score.by, score.attempts) == (by, result["attempts"]):
                        continue
                    number += 1
                    store = partial(_store, folder.path, scorer, by, result)
                    judge_plan = self._judges.get(scorer)
                    if judge_plan is not None and result["outcome"] in _ANSWERED:
                        asked = _judge_run(scorer, judge_plan, result, row)
                        asking.add(asyncio.create_task(_stored(asked, store)))
                        if len(asking) >= _AT_ONCE:
                            asking = await _one_less(asking)
                        continue
                    function = self._functions.get(scorer)
                    value, reason = await _score(scorer, function, folder, result, row, coordinator)
                    store({"value": value, "reason": reason})
            while asking:
                asking = await _one_less(asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await coordinator.cleanup()
        return number


async def _one_less(asking: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait for one of the judges; raises what it raised."""
    done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return asking


async def _judge_run(scorer: Scorer, plan: Plan, result: Record, row: Row | None) -> Judgement:
    fields = {} if row is None else row.fields
    return await judge(plan, fields, result["response"], scorer.repeat)


async def _stored(asked: Awaitable[Judgement], write: Callable[[Mapping[str, Any]], None]) -> None:
    write((await asked)._asdict())


def _digest(scorer: Scorer, function: Callable[..., Any] | None) -> str:
    """Identify a scorer with the file of its function or its plan, so that a changed one scores again."""
    file = scorer.command.removeprefix(_JUDGE) if _is_judge(scorer) else ""
    digest = hashlib.sha256(f"{scorer.name}\0{scorer.command}\0{scorer.repeat}".encode())
    code = getattr(function, "__code__", None)
    file = code.co_filename if code is not None else file
    if os.path.isfile(file):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]


def _store(folder: Path, scorer: Scorer, by: str, result: Record, facts: Mapping[str, Any]) -> None:
    """Raises SessionError."""
    run = {key: result[key] for key in ("number", "repeat", "attempts")}
    try:
        journal.append(folder, SCORES, {**run, "name": scorer.name, "by": by, **facts})
    except OSError as error:
        raise SessionError(f"cannot write {folder / SCORES}: {error.strerror}") from error


def with_rows(
    results: Iterable[Record], rows: Iterator[Row]
) -> Iterator[tuple[Record, Row | None]]:
    """Pair results in the order of the input with their rows; None for a result without one.

    Raises:
        ConfigError: The input has another row in a place.
    """
    row = next(rows, None)
    for result in results:
        while row is not None and row.number < result["number"]:
            row = next(rows, None)
        yield result, _match(row, result)


def _match(row: Row | None, result: Record) -> Row | None:
    if row is None or row.number != result["number"]:
        return None
    if row.id != result["row"]:
        raise ConfigError(
            f"the input changed since the batch began: row {row.number} is now {row.id!r}, not "
            f"{result['row']!r}",
            hint="Restore the input.",
        )
    return row


async def _score(
    scorer: Scorer,
    function: Callable[..., Any] | None,
    folder: BatchFolder,
    result: Record,
    row: Row | None,
    coordinator: Any,
) -> tuple[Value, str | None]:
    """The value, or None and the reason why it is missing."""
    if result["outcome"] not in _ANSWERED:
        return None, f"the run ended with {result['outcome']}"
    fields = {} if row is None else row.fields
    if function is not None:
        try:
            return _to_value(function(result["response"], fields, result))
        # A scorer is the code of someone else: it may raise anything, and the score is then missing.
        except (Exception, SystemExit) as error:
            return None, f"{type(error).__name__}: {error}"
    own = folder.path / WORK / str(result["session_id"])
    with chdir(own if own.is_dir() else "."):
        checks = CheckRunner(
            [Check(scorer.name, scorer.command, scorer.seconds)], coordinator, fields
        )
        [ran] = await checks.run(result["response"])
    if not ran.passed:
        return None, f"{ran.ending}: {ran.output.strip()[-200:]}"
    last = ran.output.strip().rpartition("\n")[2]
    try:
        return _to_value(json.loads(last))
    except (ValueError, RecursionError):
        return None, f"its last line is not JSON: {last[:100]!r}"


def _to_value(value: Any) -> tuple[Value, str | None]:
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
        return float(value), None
    if isinstance(value, str) and 0 < len(value) <= _MAX_LABEL:
        return value, None
    if value is None:
        return None, "the scorer gave none"
    return None, f"not a number or a short text: {str(value)[:100]!r}"


def _is_judge(scorer: Scorer) -> bool:
    return scorer.command.startswith(_JUDGE)


def _load_judge(scorer: Scorer) -> Plan:
    """The plan of a judge. Raises ConfigError."""
    return load_plan(scorer.command.removeprefix(_JUDGE))


def _is_python(scorer: Scorer) -> bool:
    return scorer.command.startswith(_PYTHON)


def _load(scorer: Scorer) -> Callable[..., Any]:
    """The function of a scorer: of an installed module, or of a file.

    Raises:
        ConfigError: The function does not exist.
    """
    module, colon, name = scorer.command.removeprefix(_PYTHON).rpartition(":")
    try:
        if module.endswith(".py"):
            path = Path(os.path.expanduser(module)).absolute()
            spec = importlib.util.spec_from_file_location(f"_scorer_{path.stem}", path)
            if spec is None or spec.loader is None:
                raise ImportError(f"{path} is not a Python file")
            found = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = found
            spec.loader.exec_module(found)
        else:
            found = importlib.import_module(module)
        function: Any = getattr(found, name)
    # The module is the code of someone else, which may raise anything when it is imported.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if colon else "expected MODULE:FUNCTION"
        raise ConfigError(f"the score {scorer.name!r} cannot be loaded: {reason}") from error
    if not callable(function):
        raise ConfigError(f"the score {scorer.name!r}: {name} of {module} is not a function")
    return cast("Callable[..., Any]", function)


# -- means -------------------------------------------------------------------------------

_T = {1: 12.706, 2: 4.303}
"""The 97.5 % quantile of Student's distribution where the expansion below is not exact enough."""
_Z = 1.959964


class Mean(NamedTuple):
    """The mean of a score over the rows, each by the mean of its runs.

    Attributes:
        name: The score.
        rows: How many rows have a value.
        missing: How many runs have none.
        value: The mean; None for labels.
        low: The lower end of its 95 % interval; None for a single row.
        high: The upper end.
        labels: The runs of each label.
        agreement: The mean agreement of a judge that was asked several times; None without one.
        cost: US dollars that a judge has cost, 0 without one; None if a price is unknown.
    """

    name: str
    rows: int
    missing: int
    value: float | None
    low: float | None
    high: float | None
    labels: dict[str, int]
    agreement: float | None = None
    cost: float | None = 0.0


def compute_mean(name: str, values: Iterable[tuple[object, Value]]) -> Mean:
    """The mean of a score.

    The interval is Student's over the means of the rows: runs of the same row resemble each other and must not narrow it.

    Args:
        name: The score.
        values: The row and the value of each run.
    """
    by_row: dict[object, list[float]] = {}
    labels: dict[str, int] = {}
    missing = 0
    for row, value in values:
        if value is None:
            missing += 1
        elif isinstance(value, str):
            labels[value] = labels.get(value, 0) + 1
        else:
            by_row.setdefault(row, []).append(value)
    means = [math.fsum(runs) / len(runs) for runs in by_row.values()]
    if not means:
        return Mean(name, 0, missing, None, None, None, labels)
    mean = math.fsum(means) / len(means)
    if len(means) == 1:
        return Mean(name, 1, missing, mean, None, None, labels)
    freedom = len(means) - 1
    variance = math.fsum((value - mean) ** 2 for value in means) / freedom
    half = student_quantile(freedom) * math.sqrt(variance / len(means))
    return Mean(name, len(means), missing, mean, mean - half, mean + half, labels)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution with so many degrees of freedom, exact to 0.5 %."""
    if freedom in _T:
        return _T[freedom]
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
