"""A tool call that has ended, as its events describe it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.turns.event_data import has_succeeded, input_in, peek, result_in
from amplifier_support.fields import field_of, mapping_of

_LONGEST_RESULT = 1_000_000


class FinishedCall(NamedTuple):
    """A tool call that has ended.

    Attributes:
        data: The data of its `tool:post` or `tool:error` event.
        seconds: How long it took.
        number: Its number in the session; None if unknown.
        agent: The sub-agent that made it; empty for the session itself.
    """

    data: dict[str, Any]
    seconds: float
    number: int | None = None
    agent: str = ""

    @property
    def input(self) -> Mapping[str, Any]:
        """Its input; empty if it is not a mapping."""
        return mapping_of(input_in(self.data))

    @property
    def error(self) -> Any:
        """The error of a call that raised one or was refused."""
        return peek(self.data, "error")

    @property
    def has_failed(self) -> bool:
        """Whether it failed or was refused."""
        return self.error is not None or not has_succeeded(self._result)

    @property
    def is_denied(self) -> bool:
        """Whether it was refused."""
        return peek(self.error, "type") == "Denied"

    @property
    def was_skipped(self) -> bool:
        """Whether it was not run because the prompt was stopped or a budget was used up."""
        return describe.was_skipped(describe.error_text(self.data, 100))

    @property
    def output(self) -> str:
        """Its result as text, without control characters."""
        if self.error is not None:
            return for_terminal(describe.error_text(self.data, 10_000))
        return for_terminal(describe.shown_result(self.data)[:_LONGEST_RESULT])

    @property
    def _result(self) -> Any:
        return result_in(self.data)

    def about(self, limit: int = 400) -> str:
        """The call in a few words: `7 bash pytest -q`, `fixer: edit_file parse.py`."""
        about = about_call(self.data, self.number, limit)
        return f"{one_line(self.agent, 40)}: {about}" if self.agent else about

    def summary(self, limit: int = 200) -> str:
        """How it ended, in one line: `ok, 8.1 s`, `failed, 12 ms: no such file`."""
        took = describe.duration(self.seconds)
        if not self.has_failed:
            return f"ok, {took}"
        if self.error is not None:
            problem = describe.error_text(self.data, limit)
            return problem if self.is_denied or self.was_skipped else f"failed, {took}: {problem}"
        lines = [line for line in self.output.splitlines() if line.strip()]
        error = field_of(self._result, "error")
        message = one_line(str(peek(error, "message") or ""), limit)
        # A command says in its last lines what is wrong, then follows how it ended.
        last_line = lines[-2] if len(lines) > 1 and lines[-1] == f"[{message}]" else ""
        last_line = last_line or ("" if message else lines[0] if lines else "")
        details = one_line(": ".join(filter(None, (message, last_line))), limit)
        return f"failed, {took}: {details}" if details else f"failed, {took}"


def call_key(data: dict[str, Any]) -> str:
    """What the events of one call have in common: its id, or else the name of its tool."""
    return str(peek(data, "tool_call_id") or peek(data, "tool_name"))


def seconds_of(data: dict[str, Any], waited: float) -> float:
    """Return how long a call took: as reported, or else as measured here."""
    milliseconds = peek(data, "duration_ms")
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) else waited


def about_call(data: dict[str, Any], number: int | None = None, limit: int = 400) -> str:
    """Describe a call in a few words: `7 bash pytest -q`."""
    words = ("" if number is None else str(number), describe.tool_name(data))
    return " ".join(filter(None, (*words, describe.tool_input(data, limit))))
