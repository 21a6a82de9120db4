"""The hook: decide, ask, remember, and log decisions."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from amplifier_core.approval import ApprovalTimeoutError
from amplifier_core.events import APPROVAL_DENIED, APPROVAL_GRANTED, APPROVAL_REQUIRED
from amplifier_core.models import HookResult
from amplifier_core.session_capabilities import (
    CONFIG_DIR,
    REMEMBERED_APPROVALS,
    SECRET_VARIABLES,
    SESSION_DIR,
    WORKING_DIR,
)
from amplifier_modules._shared.files import records
from amplifier_modules.hooks_approval.config import MODULE_ID, ApprovalConfig
from amplifier_modules.hooks_approval.memory import Memory
from amplifier_modules.hooks_approval.modes import mode_of
from amplifier_modules.hooks_approval.rules import Call, Verdict, allowances, judge

logger = logging.getLogger(__name__)

AUDIT_NAME = "approvals.jsonl"

ONCE, SESSION, ALWAYS, DENY = "Allow once", "Allow for this session", "Allow always", "Deny"

_ALLOWING = frozenset({"allow", ONCE.lower(), SESSION.lower(), ALWAYS.lower()})
_MOST_SHOWN = 4000
_MOST_AUDITED = 1000
_SHORTEST_SECRET = 8
_CARRIED = ("tool_call_id", "turn_id", "span_id", "parent_span_id", "iteration")


class ApprovalHook:
    """Decide on the tool calls of one session."""

    def __init__(self, coordinator: Any, config: ApprovalConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._mode = mode_of(coordinator, config.mode)
        self._memory = Memory(CONFIG_DIR.of(coordinator), _shared(coordinator))
        self._warned = False

    async def on_tool(self, event: str, data: Any) -> HookResult:
        """Handle `tool:pre`: whether the call may run. On any error the answer is no."""
        try:
            return await self._decide(data)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The session was not stopped: the approval system was cancelled. Passed on, it would
            # count as a failed hook, and the call would run.
            return _denial("the approval request was not answered")
        # A hook that raises is skipped, and the call would run.
        except Exception as error:
            logger.exception("%s: could not decide on a call; denying it", MODULE_ID)
            return _denial(f"the approval check failed ({type(error).__name__})")

    async def _decide(self, data: Any) -> HookResult:
        if not isinstance(data, Mapping):
            return _denial("this is not a tool call")
        given = cast("Mapping[str, Any]", data)
        tool = given.get("tool_name")
        inputs = [given[key] for key in ("tool_input", "input") if key in given]
        if not isinstance(tool, str) or not tool or not inputs:
            return _denial("this is not a tool call")
        # A hook may have changed the input under either name: what runs is one of the two.
        distinct = inputs[:1] if len(inputs) == 1 or inputs[0] == inputs[1] else inputs
        base = os.path.realpath(WORKING_DIR.of(self._coordinator) or ".")
        for values in distinct:
            if not isinstance(values, Mapping):
                return _denial("the input is not an object")
            call = Call(tool, cast("Mapping[str, Any]", values), base)
            result = await self._decide_on(call, given)
            if result.action == "deny":
                return result
        return HookResult(action="continue")

    async def _decide_on(self, call: Call, data: Mapping[str, Any]) -> HookResult:
        verdict = judge(self._config, call, self._mode.mode)
        asked = verdict.action == "ask"
        if asked:
            held = self._memory.recall(call) if self._config.remember else None
            if held is not None:
                verdict = Verdict("allow", f"remembered ({held})")
            else:
                verdict = await self._ask(call, verdict, data)
        self._audit(call, verdict, data)
        if verdict.action == "deny":
            await self._emit(APPROVAL_DENIED, call, verdict, data)
            return _denial(_refusal(self._config, call, verdict, asked=asked))
        if asked:
            await self._emit(APPROVAL_GRANTED, call, verdict, data)
        return HookResult(action="continue")

    async def _ask(self, call: Call, verdict: Verdict, data: Mapping[str, Any]) -> Verdict:
        system = self._coordinator.approval_system
        if system is None:
            return Verdict("deny", "nobody to ask", "no one can be asked for approval")
        await self._emit(APPROVAL_REQUIRED, call, verdict, data)
        question, whole = _question(call, verdict)
        options = self._options(whole)
        try:
            answer = system.request_approval(question, options, self._config.timeout, "deny")
            if inspect.isawaitable(answer):
                answer = await answer
        except ApprovalTimeoutError:
            return Verdict("deny", "timeout", f"no answer within {self._config.timeout:g} s")
        choice = answer.strip().lower() if isinstance(answer, str) else ""
        if choice not in _ALLOWING:
            return Verdict("deny", "answer", "it needs approval, which was denied")
        if choice in (SESSION.lower(), ALWAYS.lower()) and self._config.remember:
            self._memory.keep(call, always=choice == ALWAYS.lower())
        return Verdict("allow", f"answer ({choice})")

    def _options(self, whole: bool) -> list[str]:
        # Only a question shown whole can be agreed to for longer than once.
        if not self._config.remember or not whole:
            return [ONCE, DENY]
        return [ONCE, SESSION, *([ALWAYS] if self._memory.is_lasting else []), DENY]

    async def _emit(
        self, event: str, call: Call, verdict: Verdict, data: Mapping[str, Any]
    ) -> None:
        carried = {key: data[key] for key in _CARRIED if key in data}
        facts = {"tool_name": call.tool, "decided_by": verdict.by, "reason": verdict.why}
        await self._coordinator.hooks.emit(event, {**carried, **facts})

    def _audit(self, call: Call, verdict: Verdict, data: Mapping[str, Any]) -> None:
        folder = SESSION_DIR.of(self._coordinator)
        if not self._config.audit or not folder:
            return
        record = {
            "ts": datetime.now(UTC).isoformat(),
            "tool": call.tool,
            "tool_call_id": data.get("tool_call_id"),
            "decision": verdict.action,
            "by": verdict.by,
            "reason": verdict.why,
            "what": self._without_secrets(_subject(call))[:_MOST_AUDITED],
        }
        try:
            records.append(Path(folder) / AUDIT_NAME, record)
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning("%s: cannot log decisions: %s", MODULE_ID, error)

    def _without_secrets(self, text: str) -> str:
        for name in SECRET_VARIABLES.of(self._coordinator) or ():
            value = os.environ.get(name, "")
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "[REDACTED]")
        return text


def _subject(call: Call) -> str:
    """The subject of the call: the file it changes, its command, or its whole input."""
    if call.changes_one_file:
        return call.places[0].real
    rest = dict(call.values)
    if call.command is None:
        return json.dumps(rest, default=repr, ensure_ascii=False)
    rest = {key: value for key, value in rest.items() if value is not call.command}
    return f"{call.command} {json.dumps(rest, default=repr)}" if rest else call.command


def _question(call: Call, verdict: Verdict) -> tuple[str, bool]:
    """The question for the user, and whether it shows the whole subject."""
    subject = _subject(call)
    whole = len(subject) <= _MOST_SHOWN
    if not whole:
        left_out = len(subject) - _MOST_SHOWN
        subject = f"{subject[:_MOST_SHOWN]} … and {left_out} more characters not shown"
    if "\n" in subject or "\r" in subject:
        # Marked line by line, so that no line of a command can pass for part of the question.
        subject = "".join(f"\n  | {line}" for line in subject.splitlines()) + "\n"
    if call.tool == "bash" and subject == call.command:
        question = f"Run `{subject}`?"
    else:
        question = f"Allow {call.tool}: {subject}"
    if verdict.why:
        because = "Asking because " if verdict.why == call.unclear else "Reason: "
        question += f" ({because}{verdict.why})"
    return question, whole


def _refusal(config: ApprovalConfig, call: Call, verdict: Verdict, *, asked: bool) -> str:
    if asked:
        why = f"{call.tool}: {verdict.why}"
        if call.unclear is not None:
            why += f"; asked because {call.unclear}"
    else:
        why = f"{call.tool}: denied by {verdict.by} of the approval settings"
        why += f": {verdict.why}" if verdict.why else ""
    allowed = allowances(config, call.tool)
    hint = f" Allowed without asking: {allowed}." if allowed else ""
    return f"{why}. Do not try to reach the same in another way; go on without it or ask the user.{hint}"


def _denial(reason: str) -> HookResult:
    return HookResult(action="deny", reason=reason)


def _shared(coordinator: Any) -> set[str]:
    """What was allowed for the session, shared with its sub-agents."""
    remembered = REMEMBERED_APPROVALS.of(coordinator)
    if not isinstance(remembered, set):
        remembered = set[str]()
        REMEMBERED_APPROVALS.register(coordinator, remembered)
    return cast("set[str]", remembered)
