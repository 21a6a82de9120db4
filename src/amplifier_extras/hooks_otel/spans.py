"""Turn the operations of a session into spans.

A span is created when its operation ends, with the id in the operation's events: until then it is a
few facts, and operations inside it only need that id. Only the session's own span is created at its
start, because it decides whether the trace is sampled.
"""

from __future__ import annotations

import os
import time
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

from amplifier_extras.hooks_otel.attributes import Attributes
from amplifier_extras.hooks_otel.export import Ids

_SPAN_DIGITS = 16

_open_sessions: dict[str, SpanContext] = {}
"""Spans of the sessions in this process: a sub-agent's session finds its parent's trace here."""


@dataclass
class Operation:
    """An operation that has started.

    Attributes:
        name: The span's name.
        kind: The span's kind.
        span: Its id.
        parent: Id of the span around it; the session's if None.
        turn: Id of the turn it belongs to; None if unknown.
        attributes: What is known of it.
        began: When, in nanoseconds.
        error: Type and message, if it failed.
        notes: What happened meanwhile: name, time and attributes.
    """

    name: str
    kind: SpanKind
    span: str
    parent: str | None
    turn: str | None
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
        """Whether the session's span is open."""
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
