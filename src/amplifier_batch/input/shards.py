"""Which rows a batch has: all of its input or a shard of it, each as often as it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import UsageError
from amplifier_batch.input.rows import Row, read_rows

_INDEXES = ("JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "AWS_BATCH_JOB_ARRAY_INDEX")
"""Environment variables with the index of a job in Kubernetes, SLURM and AWS Batch."""
_SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")


RELATIVE = "relative"
"""The fact `ids` of batches whose rows from files are named by the path inside the input."""


def rows_of(facts: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a batch, in order: those of its shard, each as often as it runs.

    Raises:
        ConfigError: The input cannot be read.
    """
    shard = parse_shard(facts.get("shard"))
    repeat = facts.get("repeat") or 1
    for row in read_rows(Path(facts["input"]), absolute=has_absolute_ids(facts)):
        if shard is None or row.number % shard[1] == (shard[0] + 1) % shard[1]:
            if repeat == 1:
                yield row
            else:
                yield from (row._replace(run=run) for run in range(1, repeat + 1))


def has_absolute_ids(facts: Mapping[str, Any]) -> bool:
    """Return True for a batch of an earlier version, whose ids of files depend on the place of the input."""
    return facts.get("ids") != RELATIVE


def shard_of(text: str | None, environment: Mapping[str, str]) -> str | None:
    """The shard of an option, with the number of this job in place of `auto`.

    Raises:
        UsageError: It is not a shard, or this is not a job of an array.
    """
    number, slash, of = (text or "").partition("/")
    if number == "auto" and slash:
        found = [name for name in _INDEXES if environment.get(name, "").isdecimal()]
        if not found:
            raise UsageError(
                f"--shard {text}: this is not a job of an array",
                hint=f"It must have one of {', '.join(_INDEXES)}, which count from 0.",
            )
        text = f"{int(environment[found[0]]) + 1}/{of}"
    parse_shard(text)
    return text


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """The shard `2/16` as its number from 0 and how many there are.

    Raises:
        UsageError: It is not a shard.
    """
    if text is None:
        return None
    found = _SHARD.fullmatch(text)
    number, of = (int(found[1]), int(found[2])) if found else (2, 1)
    if number > of:
        raise UsageError(f"--shard: expected K/N with K from 1 to N, got {text!r}")
    return number - 1, of
