"""Turn the events of a session into operations, and operations into spans.

A span is created when its operation ends, with the id in the operation's events: until then it is a
few facts, and operations inside it only need that id. Only the session's own span is created at its
start, because it decides whether the trace is sampled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from amplifier_extras.hooks_otel import attributes as words
from amplifier_extras.hooks_otel.attributes import Attributes
from amplifier_extras.hooks_otel.config import MODULE_ID, OtelConfig
from amplifier_extras.hooks_otel.export import Ids, OtlpMetrics, Pipeline
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.privacy import LogCopy, raw_data, session_redactor
from amplifier_support.fields import read_field
from amplifier_support.session_capabilities import REDACT_EVENT, WORKING_DIR

_SPAN_DIGITS = 16

_open_sessions: dict[str, SpanContext] = {}
"""Spans of the sessions in this process: a sub-agent's session finds its parent's trace here."""

_open_metrics: dict[str, tuple[OtelConfig, OtlpMetrics]] = {}
"""Settings and metrics of the open sessions, by id; a sub-agent adds to the metrics of its parent."""


@dataclass
class Operation:
    """An operation that has started.

    Attributes:
        name: The span's name.
        kind: The span's kind.
        span: Its id.
        parent: Id of the span around it; the session's if None.
        attributes: What is known of it.
        began: When, in nanoseconds.
        error: Type and message, if it failed.
        notes: What happened meanwhile: name, time and attributes.
    """

    name: str
    kind: SpanKind
    span: str
    parent: str | None
    attributes: Attributes
    began: int = field(default_factory=time.time_ns)
    error: tuple[str, str] | None = None
    notes: list[tuple[str, int, Attributes]] = field(
        default_factory=list[tuple[str, int, Attributes]]
    )


class SessionTrace:
    """The trace of one session.

    Args:
        tracer: Makes the spans.
        ids: What the next one is called.
        session_id: The session.
        parent_id: The session it is a part of, if any.
        around: Id of the span of that session in which this one was started, if known.
    """

    def __init__(
        self,
        tracer: Tracer,
        ids: Ids,
        *,
        session_id: str,
        parent_id: str | None,
        around: str | None,
    ) -> None:
        self._tracer = tracer
        self._ids = ids
        self._session_id = session_id
        self._parent_id = parent_id
        self._around = around
        self._root: Span | None = None

    @property
    def begun(self) -> bool:
        """True if the session's span is open."""
        return self._root is not None

    def begin(self, attributes: Attributes) -> None:
        """Open the session's span, once."""
        if self._root is None:
            self._root = self._tracer.start_span(
                "session", context=self._surroundings(), attributes=attributes
            )
            _open_sessions[self._session_id] = self._root.get_span_context()

    def add(self, operation: Operation, *, milliseconds: float | None = None) -> int:
        """Create the span of an operation that ends now; returns its duration in nanoseconds.

        Args:
            operation: The operation.
            milliseconds: How long it took, if that is known better than by its events.
        """
        assert self._root is not None
        ended = time.time_ns()
        began = operation.began
        if milliseconds is not None:
            began = max(began, ended - int(milliseconds * 1e6))
        root = self._root.get_span_context()
        parent = SpanContext(
            root.trace_id, number(operation.parent) or root.span_id, False, root.trace_flags
        )
        self._ids.next_span = number(operation.span)
        span = self._tracer.start_span(
            operation.name,
            context=set_span_in_context(NonRecordingSpan(parent), Context()),
            kind=operation.kind,
            attributes=operation.attributes,
            start_time=began,
        )
        for name, at, attributes in operation.notes:
            span.add_event(name, attributes, timestamp=at)
        if operation.error is not None:
            span.set_attribute("error.type", operation.error[0])
            span.set_status(Status(StatusCode.ERROR, operation.error[1]))
        span.end(ended)
        return ended - began

    def end(self, attributes: Attributes, *, failed: bool) -> None:
        """Close the session's span."""
        root, self._root = self._root, None
        if root is None:
            return
        _open_sessions.pop(self._session_id, None)
        root.set_attributes(attributes)
        if failed:
            root.set_status(Status(StatusCode.ERROR))
        root.end()

    def _surroundings(self) -> Context:
        """The session's parent span: of its parent session, otherwise of the calling process."""
        parent = _open_sessions.get(self._parent_id or "")
        if parent is not None:
            span = number(self._around) or parent.span_id
            around = SpanContext(parent.trace_id, span, False, TraceFlags(parent.trace_flags))
            return set_span_in_context(NonRecordingSpan(around), Context())
        carrier = {
            name.lower(): os.environ[name]
            for name in ("TRACEPARENT", "TRACESTATE")
            if os.environ.get(name)
        }
        return TraceContextTextMapPropagator().extract(carrier, Context())


def number(span: str | None) -> int | None:
    """A span id as a number; None if it is invalid."""
    if span is None or len(span) != _SPAN_DIGITS:
        return None
    try:
        return int(span, 16) or None
    except ValueError:
        return None


def span_id(value: Any) -> str:
    """The span id in an event, or a new one."""
    return value if isinstance(value, str) and number(value) else token_hex(_SPAN_DIGITS // 2)


_NOTED = (
    *("provider:retry", "provider:throttle", "approval:required", "approval:granted"),
    *("approval:denied", "context:compaction", "cancel:requested"),
)
"""Events that are recorded as span events."""

_NOTED_FACTS = ("attempt", "delay", "reason", "decided_by", "strategy", "immediate", "tool_name")
_MAX_MESSAGE = 1000


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
        self._has_own_metrics = False
        if config.metrics and config.exporter == "otlp":
            theirs, metrics = _open_metrics.get(coordinator.parent_id or "", (None, None))
            self._has_own_metrics = metrics is None or theirs != config
            if metrics is None or self._has_own_metrics:
                metrics = OtlpMetrics(config, self._pipeline.resource)
            self._metrics = metrics
            _open_metrics[coordinator.session_id] = config, metrics
        self._copy = LogCopy(session_redactor(coordinator), config.max_content_chars)
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
        self._stop_waiting: Callable[[], None] = _nothing

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
        self._stop_waiting()
        for unregister in self._unregister:
            unregister()
        self._unregister.clear()
        for key in list(self._open)[::-1]:
            self._end(key, {"amplifier.unfinished": True})
        self._trace.end({}, failed=self._failed)
        _open_metrics.pop(self._coordinator.session_id, None)
        ends = self._metrics.close if self._metrics is not None and self._has_own_metrics else None
        await self._pipeline.close(ends)

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
        fields = raw_data(data)
        about: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": self._coordinator.session_id,
        }
        if isinstance(fields.get("turn_id"), str):
            about["amplifier.turn.id"] = fields["turn_id"]
        if self._config.capture_content:
            prompt = {"role": "user", "content": fields.get("prompt")}
            about |= words.input_messages([prompt], self._shown(event), self._most)
        self._begin("turn", "invoke_agent", SpanKind.INTERNAL, fields, about, parent=None)

    def _on_execution_end(self, event: str, data: Any) -> None:
        turn = self._open.get("turn")
        error = raw_data(data).get("error")
        if turn is not None and error:
            turn.error = self._error(error)

    def _on_turn_end(self, event: str, data: Any) -> None:
        fields = raw_data(data)
        # A turn that was stopped leaves calls behind that never ended.
        for key in [key for key in self._open if key != "turn"][::-1]:
            self._end(key, {"amplifier.unfinished": True})
        more = words.usage_attributes(fields.get("usage"))
        for key in ("orchestrator", "status", "reason"):
            if isinstance(fields.get(key), str):
                more[f"amplifier.turn.{key}"] = fields[key]
        if isinstance(fields.get("turn_count"), int):
            more["amplifier.turn.model_calls"] = fields["turn_count"]
        turn = self._open.get("turn")
        if turn is not None and fields.get("status") == "error":
            self._failed = True
            turn.error = turn.error or self._error(fields.get("error"))
        self._end("turn", more)

    # -- calls of providers and tools --------------------------------------------------

    def _on_request(self, event: str, data: Any) -> None:
        fields = raw_data(data)
        about = words.provider_attributes(fields)
        about["gen_ai.conversation.id"] = self._coordinator.session_id
        if self._config.capture_content:
            redaction = self._shown(event)
            about |= words.input_messages(fields.get("messages"), redaction, self._most)
        name = " ".join(["chat", *filter(None, [about.get("gen_ai.request.model")])])
        key = _key(fields, "provider")
        self._begin(key, name, SpanKind.CLIENT, fields, about, parent="turn")
        self._await_first_chunk(key)

    def _await_first_chunk(self, key: str) -> None:
        """Take the time of the first delta of an answer; the others are not listened to."""

        def on_delta(event: str, data: Any) -> None:
            self._stop_waiting()
            if call := self._open.get(key):
                seconds = (time.time_ns() - call.began) / 1e9
                call.attributes |= {"gen_ai.request.stream": True, words.FIRST_CHUNK: seconds}

        self._stop_waiting()
        unregister = self._coordinator.hooks.register(
            "content_block:delta", on_delta, priority=-self._config.priority, name=MODULE_ID
        )

        def stop() -> None:
            unregister()
            self._stop_waiting = _nothing

        self._stop_waiting = stop

    def _on_response(self, event: str, data: Any) -> None:
        fields = raw_data(data)
        key = _key(fields, "provider")
        call = self._open.get(key)
        self._stop_waiting()
        if call is None:
            return
        if event == "provider:error":
            call.error = self._error(fields.get("error"))
            self._end(key, {})
            return
        more = words.response_attributes(fields)
        if self._config.capture_content:
            more |= words.output_messages(fields.get("response"), self._shown(event))
        self._end(key, more)

    def _on_call(self, event: str, data: Any) -> None:
        fields = raw_data(data)
        about = words.tool_attributes(fields)
        if self._config.capture_content:
            text = words.as_attribute(fields.get("tool_input"), self._shown(event))
            about["gen_ai.tool.call.arguments"] = text
        name = " ".join(["execute_tool", *filter(None, [about.get("gen_ai.tool.name")])])
        key = _key(fields, "tool")
        self._begin(key, name, SpanKind.INTERNAL, fields, about, parent="provider")

    def _on_result(self, event: str, data: Any) -> None:
        fields = raw_data(data)
        key = _key(fields, "tool")
        if key not in self._open:
            # Denied before it was seen here, or an unknown tool: this is its only event.
            self._on_call(event, data)
        call = self._open.get(key)
        if call is None:
            return
        more: Attributes = {}
        result = fields.get("tool_result", fields.get("result"))
        error = fields.get("error") or read_field(result, "error")
        if event == "tool:error" or read_field(result, "success") is False:
            call.error = self._error(error)
        if self._config.capture_content and event == "tool:post":
            more["gen_ai.tool.call.result"] = words.as_attribute(result, self._shown(event))
        took = fields.get("duration_ms")
        self._end(key, more, took if isinstance(took, (int, float)) else None)

    def _on_note(self, event: str, data: Any) -> None:
        fields = raw_data(data)
        facts = {
            key: self._text(fields[key]) if isinstance(fields[key], str) else fields[key]
            for key in _NOTED_FACTS
            if isinstance(fields.get(key), (str, int, float))
        }
        for key in (_key(fields, "tool"), _key(fields, "provider"), "turn"):
            operation = self._open.get(key)
            if operation is not None:
                operation.notes.append((event, time.time_ns(), facts))
                return

    # -- details -----------------------------------------------------------------------

    def _begin(
        self,
        key: str,
        name: str,
        kind: SpanKind,
        fields: dict[str, Any],
        about: Attributes,
        *,
        parent: str | None,
    ) -> None:
        if not self._trace.begun:
            return
        around = fields.get("parent_span_id") if parent else None
        if parent and not isinstance(around, str):
            # A loop without ids: assume the last started operation of that kind.
            around = self._latest(parent)
        operation = Operation(name, kind, span_id(fields.get("span_id")), around, about)
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
            return self._copy.of(value)

        return shown

    def _error(self, error: Any) -> tuple[str, str]:
        kind = read_field(error, "type")
        message = error if isinstance(error, str) else read_field(error, "message")
        text = self._text(message) if isinstance(message, str) else ""
        return (kind if isinstance(kind, str) and kind else "_OTHER"), text

    def _text(self, text: str) -> str:
        return self._copy.text(text)[:_MAX_MESSAGE]


def _nothing() -> None:
    """Wait for no delta."""


def _key(fields: dict[str, Any], kind: str) -> str:
    """The key of an operation until it ends."""
    names = ("tool_call_id", "span_id") if kind == "tool" else ("span_id",)
    identity = next((fields[name] for name in names if isinstance(fields.get(name), str)), "")
    return f"{kind}:{identity}"
