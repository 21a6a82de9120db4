"""The result of a run as one JSON object, as defined in `schemas/result.schema.json`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.runtime.turns.turn import NO_TURN, DeniedCall, SubSession, ToolUse, TurnResult

if TYPE_CHECKING:
    from amplifier_app.runtime.checks import CheckResult
    from amplifier_app.runtime.session import OpenSession
    from amplifier_app.sessions.waiting import Question
    from amplifier_support.sandbox.sandbox import Sandbox

SCHEMA_VERSION = 2


class RunReport:
    """The state of a run, reported however it ends.

    Attributes:
        session_id: None until a session is open, as are provider and model.
        plan_digest: None until a plan is loaded.
        turn: The last turn, complete or not; None if there was none.
        checks: The last result of each check.
        sandbox: That of the session; None until one is open.
        data: With a schema, the answer as JSON data.
        waiting: The questions that wait for an answer.
        announced: Whether the event stream has written its `session` line.
        started: `time.monotonic()` at the start.
    """

    def __init__(self) -> None:
        self.session_id: str | None = None
        self.plan_digest: str | None = None
        self.provider: str | None = None
        self.model: str | None = None
        self.turn: TurnResult | None = None
        self.checks: Sequence[CheckResult] = ()
        self.sandbox: Sandbox | None = None
        self.data: Any = None
        self.waiting: Sequence[Question] = ()
        self.announced = False
        self.started = time.monotonic()

    def note_session(self, session: OpenSession) -> None:
        """Note which session is open, and what it runs with."""
        self.session_id, self.sandbox = session.id, session.sandbox
        self.provider, self.model = session.facts.provider, session.facts.model


def result_object(outcome: Outcome, report: RunReport | None) -> dict[str, Any]:
    """Return the object printed by `--output json` and at the end of `--output stream-json`.

    Without a report, as for commands other than `run`, it contains only the outcome.
    """
    ended = {
        "schema_version": SCHEMA_VERSION,
        "outcome": outcome.ending.value,
        "exit_code": outcome.exit_code,
        "error": None if outcome.ending is Ending.OK else _error(outcome),
    }
    return ended if report is None else {**ended, **_report_fields(report)}


def _report_fields(report: RunReport) -> dict[str, Any]:
    turn = report.turn or NO_TURN
    return {
        "response": turn.response,
        "data": report.data,
        "reason": turn.reason,
        "limit": None if turn.limit is None else turn.limit.as_dict(),
        "session_id": report.session_id,
        "plan_digest": report.plan_digest,
        "provider": report.provider,
        "model": report.model,
        "answered_models": dict(turn.answered_models),
        "prompts": 0 if report.turn is None else 1,
        "steps": turn.steps,
        "usage": turn.usage,
        "cost": cost_object(turn.cost),
        "tools": [_fields(tool, "id", "name", "outcome", "duration_ms") for tool in turn.tools],
        "denied": [_denied(call, report.session_id) for call in turn.denied],
        "waiting": [
            {
                "id": question.id,
                "tool": question.tool,
                "input": question.input,
                "question": question.text,
            }
            for question in report.waiting
        ],
        "sub_sessions": [sub_session_object(ended) for ended in turn.sub_sessions],
        "sandbox": None if report.sandbox is None else _sandbox(report.sandbox),
        "checks": [check._asdict() for check in report.checks],
        "duration_ms": round((time.monotonic() - report.started) * 1000),
    }


def _denied(call: DeniedCall, session_id: str | None) -> dict[str, Any]:
    fields = _fields(call, "id", "name", "reason", "agent", "by_default", "by_sandbox")
    return {"session_id": call.session_id or session_id, **fields}


def cost_object(cost: Decimal | None) -> dict[str, float] | None:
    """Return an amount of money; None if unknown."""
    return None if cost is None else {"usd": float(cost)}


def sub_session_object(ended: SubSession) -> dict[str, Any]:
    """Return what a sub-agent did, without its answer and its calls: its own session has these."""
    fields = {**ended._asdict(), "cost": cost_object(ended.cost)}
    del fields["response"], fields["tools"]
    return fields


def _sandbox(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "policy": None if sandbox.policy is None else sandbox.policy.as_value(),
        "enforced": sandbox.used,
        "missing": sandbox.goes_without,
    }


def _fields(value: ToolUse | DeniedCall, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _error(outcome: Outcome) -> dict[str, Any]:
    after = outcome.retry_after
    return {
        "message": outcome.message,
        "hint": outcome.hint,
        "retry_after_ms": None if after is None else round(after * 1000),
    }
