"""How prompts and rows end, for callers from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from amplifier_app.base.outcome import Ending


class Answer(NamedTuple):
    """How a prompt ended.

    Attributes:
        text: The answer; empty if there is none.
        outcome: The name of the ending: "ok", "budget", "denied", "provider" …
        exit_code: The exit code of `amplifier run` for it.
        error: What happened, if it is not "ok".
        data: The answer as JSON data, if a schema was given.
        cost: US dollars; None if a price is unknown.
        result: Everything, as `amplifier schema result` describes it.
    """

    text: str
    outcome: str
    exit_code: int
    error: str | None
    data: Any
    cost: float | None
    result: Mapping[str, Any]

    @property
    def is_ok(self) -> bool:
        """Whether the prompt was answered."""
        return self.outcome == Ending.OK.value


class RowAnswer(NamedTuple):
    """How a row of a batch ended.

    Attributes:
        id: The row's `id`, or else a hash of its fields.
        number: Its position in the input, from 1.
        repeat: Which run of the row it is, from 1.
        answer: The answer; its `result` is the line of results.jsonl.
    """

    id: str
    number: int
    repeat: int
    answer: Answer


def answer_of(result: Mapping[str, Any]) -> Answer:
    """The answer of a result, as `amplifier schema result` describes it."""
    cost, error = result["cost"], result["error"]
    return Answer(
        text=result["response"],
        outcome=result["outcome"],
        exit_code=result["exit_code"],
        error=None if error is None else error["message"],
        data=result["data"],
        cost=None if cost is None else cost["usd"],
        result=result,
    )
