"""The hook: which events start, change and end which operations."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from amplifier_extras.hooks_otel import attributes as words
from amplifier_extras.hooks_otel.attributes import Attributes
from amplifier_extras.hooks_otel.config import MODULE_ID, OtelConfig
from amplifier_extras.hooks_otel.export import Pipeline
from amplifier_extras.hooks_otel.spans import Operation, SessionTrace, span_id
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.privacy.event_json import Cutter, raw_data, to_plain
from amplifier_modules._shared.privacy.session_secrets import session_secrets
from amplifier_support.fields import field_of
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import REDACT_EVENT, WORKING_DIR

if TYPE_CHECKING:
    from amplifier_extras.hooks_otel.metrics import OtlpMetrics

_NOTED = (
    *("provider:retry", "provider:throttle", "approval:required", "approval:granted"),
    *("approval:denied", "context:compaction", "cancel:requested"),
)
"""Events that are recorded as span events."""

_NOTED_FACTS = ("attempt", "delay", "reason", "decided_by", "strategy", "immediate", "tool_name")
_LONGEST_MESSAGE = 1000


class Telemetry:
    """Create spans for one session's events.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        config: What to record, and where it goes.
    """

    def __init__(self, coordinator: Any, config: OtelConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._pipeline = Pipeline(config, WORKING_DIR.of(coordinator) or os.getcwd())
        self._metrics: OtlpMetrics | None = None
        if config.metrics and config.exporter == "otlp":
            # The other exporters work without OTLP's package.
            from amplifier_extras.hooks_otel.metrics import OtlpMetrics

            self._metrics = OtlpMetrics(config, self._pipeline.resource)
        self._cutter = Cutter(Redactor(session_secrets(coordinator)), config.max_content_chars)
        parent = coordinator.parent_id
        around = event_ids()
        self._trace = SessionTrace(
            self._pipeline.tracer,
            self._pipeline.ids,
            session_id=coordinator.session_id,
            parent_id=parent,
            # Mounted during a tool call of the parent session, so that call is its parent.
            around=around.get("span_id") if parent and around.get("session_id") == parent else None,
        )
        self._open: dict[str, Operation] = {}
        self._failed = False
        self._unregister: list[Callable[[], None]] = []

    def listen(self) -> None:
        """Start recording."""
        late, early = self._config.priority, -self._config.priority
        handlers: dict[str, tuple[Callable[[str, Any], None], int]] = {
            "session:start": (self._on_session, early),
            "session:resume": (self._on_session, early),
            "prompt:submit": (self._on_prompt, early),
            "execution:end": (self._on_execution_end, late),
            "orchestrator:complete": (self._on_turn_end, late),
            "provider:request": (self._on_request, late),
            "provider:response": (self._on_response, early),
            "provider:error": (self._on_response, early),
            "tool:pre": (self._on_call, late),
            "tool:post": (self._on_result, early),
            "tool:error": (self._on_result, early),
            **dict.fromkeys(_NOTED, (self._on_note, early)),
        }
        for event, (handler, priority) in handlers.items():
            self._unregister.append(
                self._coordinator.hooks.register(event, handler, priority=priority, name=MODULE_ID)
            )

    async def close(self) -> None:
        """End what is open and send the rest; a second call does nothing."""
        if not self._unregister:
            return
        for unregister in self._unregister:
            unregister()
        self._unregister.clear()
        for key in list(self._open)[::-1]:
            self._end(key, {"amplifier.unfinished": True})
        self._trace.end({}, failed=self._failed)
        await self._pipeline.close(None if self._metrics is None else self._metrics.close)

    # -- the session and its turns -----------------------------------------------------

    def _on_session(self, event: str, data: Any) -> None:
        self._begin_session(resumed=event == "session:resume")

    def _begin_session(self, *, resumed: bool) -> None:
        if self._trace.begun:
            return
        about: Attributes = {
            "session.id": self._coordinator.session_id,
            "gen_ai.conversation.id": self._coordinator.session_id,
            "amplifier.session.resumed": resumed,
        }
        parent = self._coordinator.parent_id
        self._trace.begin({**about, **({"amplifier.session.parent_id": parent} if parent else {})})

    def _on_prompt(self, event: str, data: Any) -> None:
        self._begin_session(resumed=False)
        given = raw_data(data)
        about: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": self._coordinator.session_id,
        }
        if isinstance(given.get("turn_id"), str):
            about["amplifier.turn.id"] = given["turn_id"]
        if self._config.capture_content:
            prompt = {"role": "user", "content": given.get("prompt")}
            about |= words.input_messages([prompt], self._shown(event), self._most)
        self._begin("turn", "invoke_agent", SpanKind.INTERNAL, given, about, parent=None)

    def _on_execution_end(self, event: str, data: Any) -> None:
        turn = self._open.get("turn")
        error = raw_data(data).get("error")
        if turn is not None and error:
            turn.error = self._error(error)

    def _on_turn_end(self, event: str, data: Any) -> None:
        given = raw_data(data)
        # A turn that was stopped leaves calls behind that never ended.
        for key in [key for key in self._open if key != "turn"][::-1]:
            self._end(key, {"amplifier.unfinished": True})
        more = words.usage_attributes(given.get("usage"))
        for key in ("orchestrator", "status", "reason"):
            if isinstance(given.get(key), str):
                more[f"amplifier.turn.{key}"] = given[key]
        if isinstance(given.get("turn_count"), int):
            more["amplifier.turn.model_calls"] = given["turn_count"]
        turn = self._open.get("turn")
        if turn is not None and given.get("status") == "error":
            self._failed = True
            turn.error = turn.error or self._error(given.get("error"))
        self._end("turn", more)

    # -- calls of providers and tools --------------------------------------------------

    def _on_request(self, event: str, data: Any) -> None:
        given = raw_data(data)
        about = words.provider_attributes(given)
        about["gen_ai.conversation.id"] = self._coordinator.session_id
        if self._config.capture_content:
            shown = self._shown(event)
            about |= words.input_messages(given.get("messages"), shown, self._most)
        name = " ".join(["chat", *filter(None, [about.get("gen_ai.request.model")])])
        self._begin(_key(given, "provider"), name, SpanKind.CLIENT, given, about, parent="turn")

    def _on_response(self, event: str, data: Any) -> None:
        given = raw_data(data)
        key = _key(given, "provider")
        call = self._open.get(key)
        if call is None:
            return
        if event == "provider:error":
            call.error = self._error(given.get("error"))
            self._end(key, {})
            return
        more = words.response_attributes(given)
        if self._config.capture_content:
            more |= words.output_messages(given.get("response"), self._shown(event))
        self._end(key, more)

    def _on_call(self, event: str, data: Any) -> None:
        given = raw_data(data)
        about = words.tool_attributes(given)
        if self._config.capture_content:
            text = words.as_attribute(given.get("tool_input"), self._shown(event))
            about["gen_ai.tool.call.arguments"] = text
        name = " ".join(["execute_tool", *filter(None, [about.get("gen_ai.tool.name")])])
        key = _key(given, "tool")
        self._begin(key, name, SpanKind.INTERNAL, given, about, parent="provider")

    def _on_result(self, event: str, data: Any) -> None:
        given = raw_data(data)
        key = _key(given, "tool")
        if key not in self._open:
            # Denied before it was seen here, or an unknown tool: this is its only event.
            self._on_call(event, data)
        call = self._open.get(key)
        if call is None:
            return
        more: Attributes = {}
        result = given.get("tool_result", given.get("result"))
        error = given.get("error") or field_of(result, "error")
        if event == "tool:error" or field_of(result, "success") is False:
            call.error = self._error(error)
        if self._config.capture_content and event == "tool:post":
            more["gen_ai.tool.call.result"] = words.as_attribute(result, self._shown(event))
        took = given.get("duration_ms")
        self._end(key, more, took if isinstance(took, (int, float)) else None)

    def _on_note(self, event: str, data: Any) -> None:
        given = raw_data(data)
        facts = {
            key: self._text(given[key]) if isinstance(given[key], str) else given[key]
            for key in _NOTED_FACTS
            if isinstance(given.get(key), (str, int, float))
        }
        for key in (_key(given, "tool"), _key(given, "provider"), "turn"):
            operation = self._open.get(key)
            if operation is not None:
                moment = Operation("", SpanKind.INTERNAL, "", None, None, {})
                operation.notes.append((event, moment.began, facts))
                return

    # -- details -----------------------------------------------------------------------

    def _begin(
        self,
        key: str,
        name: str,
        kind: SpanKind,
        given: dict[str, Any],
        about: Attributes,
        *,
        parent: str | None,
    ) -> None:
        if not self._trace.begun:
            return
        turn = given.get("turn_id")
        around = given.get("parent_span_id") if parent else None
        if parent and not isinstance(around, str):
            # A loop without ids: assume the last started operation of that kind.
            around = self._latest(parent)
        operation = Operation(name, kind, span_id(given.get("span_id")), around, turn, about)
        self._open[key] = operation

    def _latest(self, kind: str) -> str | None:
        for key in reversed(self._open):
            if key.startswith(kind):
                return self._open[key].span
        return self._open["turn"].span if "turn" in self._open else None

    def _end(self, key: str, more: Attributes, milliseconds: float | None = None) -> None:
        operation = self._open.pop(key, None)
        if operation is None:
            return
        operation.attributes |= more
        took = self._trace.add(operation, milliseconds=milliseconds)
        failed = {"error.type": operation.error[0]} if operation.error else {}
        if self._metrics is not None:
            self._metrics.record({**operation.attributes, **failed}, took)

    @property
    def _most(self) -> int:
        return self._config.max_content_chars

    def _shown(self, event: str) -> words.Showable:
        """The part of an event's content that may be recorded, after redaction."""
        redact = REDACT_EVENT.of(self._coordinator)

        def shown(value: Any) -> Any:
            if redact is not None:
                value = redact(event, value)
            return self._cutter.plain(to_plain(value))

        return shown

    def _error(self, error: Any) -> tuple[str, str]:
        kind = field_of(error, "type")
        message = error if isinstance(error, str) else field_of(error, "message")
        text = self._text(message) if isinstance(message, str) else ""
        return (kind if isinstance(kind, str) and kind else "_OTHER"), text

    def _text(self, text: str) -> str:
        return self._cutter.plain(text)[:_LONGEST_MESSAGE]


def _key(given: dict[str, Any], kind: str) -> str:
    """The key of an operation until it ends."""
    names = ("tool_call_id", "span_id") if kind == "tool" else ("span_id",)
    identity = next((given[name] for name in names if isinstance(given.get(name), str)), "")
    return f"{kind}:{identity}"
