"""Ids of the operations in a turn: the turn, the operation and its parent.

A provider call is a child span of the turn, a tool call a child span of its provider call
(Context & Orchestrator Specification, Turn & Iteration Semantics). A turn that runs inside a
tool call, as a sub-agent's does, is a child of that tool call.

Ids are random hex as in W3C Trace Context: 32 digits for a turn, 16 for a span.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar, Token
from secrets import token_hex
from typing import Any, cast

from amplifier_support.session_capabilities import ANNOUNCED_EVENTS


class Span:
    """One operation of a turn.

    Attributes:
        fields: Data of every event of the operation: turn_id, span_id, parent_span_id (None at
            the top), iteration (0 outside provider cycles, then from 1), and session_id if known.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def turn(cls, session_id: str | None = None) -> Span:
        """The root span of a new turn."""
        around = _current.get()
        fields: dict[str, Any] = {
            "turn_id": token_hex(16),
            "span_id": token_hex(8),
            "parent_span_id": around.fields["span_id"] if around else None,
            "iteration": 0,
        }
        if session_id:
            fields["session_id"] = session_id
        return cls(fields)

    def child(self, iteration: int | None = None) -> Span:
        """A span inside this one, by default of the same iteration."""
        fields = {
            **self.fields,
            "span_id": token_hex(8),
            "parent_span_id": self.fields["span_id"],
        }
        if iteration is not None:
            fields["iteration"] = iteration
        return Span(fields)

    def again(self) -> Span:
        """A span for a retry of the same operation."""
        return Span({**self.fields, "span_id": token_hex(8)})

    def enter(self) -> Token[Span | None]:
        """Make this the current span of the running task, until `leave` or its end."""
        return _current.set(self)

    @staticmethod
    def leave(entered: Token[Span | None]) -> None:
        """Go back to the span that was current before."""
        _current.reset(entered)


_current: ContextVar[Span | None] = ContextVar("amplifier_span", default=None)


def event_ids() -> dict[str, Any]:
    """The id fields for an event that a provider or tool emits while the loop runs it.

    Empty outside a turn of a bundled orchestrator.
    """
    span = _current.get()
    return dict(span.fields) if span else {}


async def announced_events(coordinator: Any) -> list[str]:
    """The names of the events that modules emit in addition to the kernel's.

    Each contributes a name or several; some register a capability instead. Anything else is ignored.
    """
    contributed = await coordinator.collect_contributions("observability.events")
    events: list[str] = []
    for contribution in [*contributed, ANNOUNCED_EVENTS.of(coordinator)]:
        several = isinstance(contribution, Iterable) and not isinstance(contribution, str)
        names = cast("Iterable[Any]", contribution) if several else [contribution]
        events += [name for name in names if isinstance(name, str)]
    return events
