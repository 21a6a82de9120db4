"""Scores of the runs of a batch: a number or a label for each answer, from a command, a Python function or a judge.

scores.jsonl has one line for each run and score; the last one of a run counts, if it is of the same attempt:

    {"number": 1, "repeat": 1, "attempts": 1, "name": "tests", "by": DIGEST, "value": 0.5, "reason": null}

A value is missing, never zero, if the run has no answer or the scorer fails; `reason` says why. Lines of judges also
have `agreement`, `cost` and `replies`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import ConfigError, SessionError, UsageError
from amplifier_app.base.records import parse_record
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.scorers import JUDGE, PYTHON, scorer_file
from amplifier_app.plan.tree.nodes import ListNode, MapNode
from amplifier_batch.functions import Value
from amplifier_batch.input import Row
from amplifier_batch.record.folder import SCORES, BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_support import journal
from amplifier_support.fields import to_mapping
from amplifier_support.files import open_to_read, system_errors_as
from amplifier_support.named_tuple import NamedTuple

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Threshold(NamedTuple):
    """The scores with which a row passes.

    Attributes:
        min: The lowest one.
        max: The highest one.
        equals: The only one, as a number or a label.
    """

    min: float | None = None
    max: float | None = None
    equals: float | str | None = None

    def describe_miss(self, value: float | str) -> str | None:
        """Describe why a score does not pass; None if it does."""
        if self.equals is not None and value != self.equals:
            return f"score {_shown(value)}, expected {_shown(self.equals)}"
        for limit, is_missed, name in (
            (self.min, lambda low: value < low, "at least"),
            (self.max, lambda high: value > high, "at most"),
        ):
            if limit is not None and (isinstance(value, str) or is_missed(limit)):
                return f"score {_shown(value)}, expected {name} {_shown(limit)}"
        return None


def _shown(value: float | str) -> str:
    return repr(value) if isinstance(value, str) else f"{value:g}"


class Scorer(NamedTuple):
    """A source of scores.

    Attributes:
        name: The name of the score.
        command: The shell command, `python:MODULE:FUNCTION`, `python:FILE.py:FUNCTION` or `judge:PLAN`.
        file: The file of the function or the judge, absolute; None for any other.
        seconds: The time limit of a command or a function.
        repeat: How often a judge is asked.
        rubric: How a judge scores an answer, in addition to its instruction.
        schema: The JSON Schema of a judge's reply, as JSON; empty for the schema in `scoring`.
        threshold: The scores with which a row passes; None if the score is no check.
    """

    name: str
    command: str
    file: str | None = None
    seconds: float = 600.0
    repeat: int = 1
    rubric: str = ""
    schema: str = ""
    threshold: Threshold | None = None

    @property
    def is_function(self) -> bool:
        """True for a Python function."""
        return self.command.startswith(PYTHON)

    @property
    def is_judge(self) -> bool:
        """True for a plan that is asked."""
        return self.command.startswith(JUDGE)


class Score(NamedTuple):
    """The score of one run.

    Attributes:
        attempts: Which attempt of the run it is of.
        by: The digest of the scorer.
        value: A number or a label; None if it is missing.
        reason: Why it is missing.
        agreement: The share of a judge's replies that equal the most frequent one; None for a single one.
        cost: US dollars that judges have cost for this score of the run so far, in all attempts; None if a price is
            unknown.
    """

    attempts: int
    by: str
    value: Value
    reason: str | None
    agreement: float | None = None
    cost: float | None = 0.0


Scores = dict[tuple[int, int], dict[str, Score]]
"""Number and repeat of a run → its scores by name."""


def load_scorers(plan: ResolvedPlan, texts: Sequence[str] = ()) -> list[Scorer]:
    """Return the scorers of a plan, then the ones of the command line, given as `NAME=COMMAND`.

    Files are relative to the document that names them, on the command line to the working directory.

    Raises:
        UsageError: One of the command line is invalid.
        ConfigError: A schema has no score, a threshold is invalid, or two scores of the plan have the same name.
    """
    section = plan.tree.items.get("scores")
    nodes = section.items if isinstance(section, ListNode) else []
    entries: list[Mapping[str, Any]] = plan.data.get("scores") or []
    scorers: list[Scorer] = []
    for node, entry in zip(nodes, entries, strict=True):
        source = Path(node.items["run"].at.file if isinstance(node, MapNode) else "")
        scorer = _scorer(entry, source.parent if source.is_absolute() else Path.cwd())
        if scorer.name in (other.name for other in scorers):
            hint = "Give each a 'name' of its own."
            raise ConfigError(f"two scores are named {scorer.name!r}", location=node.at, hint=hint)
        scorers.append(scorer)
    for text in texts:
        name, sign, command = text.partition("=")
        if not sign or not _NAME.fullmatch(name) or not command.strip():
            hint = "For example: --score 'tests=./score.sh' or --score 'f1=python:my.scores:f1'."
            raise UsageError(f"--score: expected NAME=COMMAND, got {text!r}", hint=hint)
        scorers = [scorer for scorer in scorers if scorer.name != name]
        scorers.append(_scorer({"name": name, "run": command}, Path.cwd()))
    return scorers


def _scorer(entry: Mapping[str, Any], folder: Path) -> Scorer:
    name, command = entry.get("name", "score"), entry["run"]
    file = scorer_file(command, folder)
    return Scorer(
        name,
        command,
        None if file is None else os.path.realpath(file),
        _number(name, "timeout", entry.get("timeout", 600)) or 600.0,
        int(_number(name, "repeat", entry.get("repeat", 1)) or 1),
        entry.get("rubric", ""),
        _schema(name, entry.get("schema")),
        _threshold(name, entry),
    )


def _number(name: str, key: str, value: Any) -> float | None:
    """Raises ConfigError for a variable whose value is not a number."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the {key!r} of the score {name!r} must be a number (got {value!r})"
        ) from None


def _threshold(name: str, entry: Mapping[str, Any]) -> Threshold | None:
    low, high = (_number(name, key, entry.get(key)) for key in ("min", "max"))
    equals = entry.get("equals")
    if isinstance(equals, (bool, int)):
        equals = float(equals)
    if equals is not None and not isinstance(equals, (float, str)):
        raise ConfigError(f"the 'equals' of the score {name!r} must be a number or a text")
    return None if low is high is equals is None else Threshold(low, high, equals)


def _schema(name: str, schema: Any) -> str:
    if schema is None:
        return ""
    if "score" not in to_mapping(to_mapping(schema).get("properties")):
        raise ConfigError(
            f"the 'schema' of the score {name!r} has no property 'score'",
            hint="{type: object, properties: {score: {type: number}}, required: [score]}",
        )
    return json.dumps(schema, sort_keys=True)


def read_scores(folder: BatchFolder) -> Scores:
    """The scores of a batch, the last one of each name.

    Raises:
        SessionError: They cannot be read.
    """
    scores: Scores = {}
    path = folder.path / SCORES
    with (
        system_errors_as(SessionError, f"cannot read {path}"),
        contextlib.suppress(FileNotFoundError),
        open(open_to_read(path), "rb") as file,
    ):
        for line in filter(None, map(parse_record, file)):
            get = line.get
            of_run = scores.setdefault((get("number", 0), get("repeat", 1)), {})
            name, rest = str(get("name")), map(get, ("value", "reason", "agreement"))
            cost = add_costs(of_run[name].cost if name in of_run else 0.0, get("cost", 0.0))
            of_run[name] = Score(get("attempts", 1), str(get("by")), *rest, cost=cost)
    return scores


def add_costs(*costs: float | None) -> float | None:
    """Return the sum of costs in US dollars; None if one is unknown."""
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if len(known) == len(costs) else None


def store_score(folder: Path, result: Mapping[str, Any], score: Mapping[str, Any]) -> None:
    """Store a score of a run, and return when it is on disk.

    Args:
        folder: The folder of the batch.
        result: The run: its `number`, `repeat` and `attempts`.
        score: The other fields of the line.

    Raises:
        SessionError: It cannot be written.
    """
    run = {key: result[key] for key in ("number", "repeat", "attempts")}
    with system_errors_as(SessionError, f"cannot write {folder / SCORES}"):
        journal.append(folder, SCORES, {**run, **score})


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
