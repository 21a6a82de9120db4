"""End the calls that a loop does not run, for renderers.

Some loops emit nothing for a call that a hook denied: it is over at the next request, or with the
next answer if they report no requests. For an unknown tool, some emit only `error:tool`.
"""

from __future__ import annotations

from typing import Any

from amplifier_app.runtime.observers.unreported_blocks import UNREPORTED
from amplifier_app.runtime.turns.event_data import EventHandler, peek
from amplifier_core.events import APPROVAL_DENIED


def with_denied_ends(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that a call that does not run ends in every loop."""
    calls = _RunningCalls(handlers.get("tool:error", _nothing))
    watched: dict[str, EventHandler] = {
        # A stopped prompt ends its calls itself.
        "cancel:requested": calls.forget,
        "prompt:submit": calls.forget,
        "execution:start": calls.forget,
        "tool:pre": calls.began,
        "tool:post": calls.ended,
        "tool:error": calls.ended,
        APPROVAL_DENIED: calls.denied,
        "error:tool": calls.not_found,
        "provider:request": calls.requested,
        "content_block:end": calls.answered,
        "orchestrator:complete": calls.completed,
    }
    return {
        **handlers,
        **{event: _both(first, handlers.get(event, _nothing)) for event, first in watched.items()},
    }


class _RunningCalls:
    """The calls that began and have not ended.

    Args:
        on_error: Receives `tool:error` for those that do not run.
    """

    def __init__(self, on_error: EventHandler) -> None:
        self._on_error = on_error
        self._running: dict[Any, dict[str, Any]] = {}
        self._reasons: dict[Any, str] = {}

    def began(self, event: str, data: dict[str, Any]) -> None:
        self._running[_key(data)] = data

    def ended(self, event: str, data: dict[str, Any]) -> None:
        self._running.pop(_key(data), None)

    def denied(self, event: str, data: dict[str, Any]) -> None:
        reason = peek(data, "reason")
        self._reasons[peek(data, "tool_name")] = reason if isinstance(reason, str) else ""

    def requested(self, event: str, data: dict[str, Any]) -> None:
        for call in list(self._running.values()):
            reason = self._reasons.get(peek(call, "tool_name"))
            self._fail(call, "Denied", reason or "refused by a hook of the plan")
        self.forget(event, data)

    def answered(self, event: str, data: dict[str, Any]) -> None:
        if peek(data, "source") == UNREPORTED:
            self.requested(event, data)

    def completed(self, event: str, data: dict[str, Any]) -> None:
        ends_calls = peek(data, "status") in ("success", "incomplete")
        (self.requested if ends_calls else self.forget)(event, data)

    def not_found(self, event: str, data: dict[str, Any]) -> None:
        if self._running and peek(data, "error_type") == "tool_not_found":
            _, call = self._running.popitem()  # these loops run one call at a time
            self._fail(call, "ToolNotFound", peek(data, "error_message"))

    def forget(self, event: str, data: dict[str, Any]) -> None:
        self._running.clear()
        self._reasons.clear()

    def _fail(self, call: dict[str, Any], kind: str, message: Any) -> None:
        self._on_error("tool:error", {**call, "error": {"type": kind, "message": message}})


def _both(first: EventHandler, then: EventHandler) -> EventHandler:
    def handle(event: str, data: dict[str, Any]) -> None:
        first(event, data)
        then(event, data)

    return handle


def _key(data: dict[str, Any]) -> Any:
    return peek(data, "tool_call_id") or peek(data, "tool_name")


def _nothing(event: str, data: dict[str, Any]) -> None:
    pass
