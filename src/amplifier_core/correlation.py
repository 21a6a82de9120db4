"""Associate events with a model call through a request id in the async context.

A request event opens a call, interim events carry its id, and a terminal event carries
the id and closes the call. An explicit id takes precedence.
"""

import uuid
from contextvars import ContextVar

REQUEST_ID_FIELD = "request_id"
REQUEST_EVENTS = frozenset({"llm:request"})
TERMINAL_EVENTS = frozenset({"llm:response", "provider:error"})
INTERIM_EVENTS = frozenset({"provider:retry", "provider:throttle"})
CORRELATED_EVENTS = REQUEST_EVENTS | TERMINAL_EVENTS | INTERIM_EVENTS

_current: ContextVar[str | None] = ContextVar("amplifier_request_id", default=None)


def new_request_id() -> str:
    """A new id (uuid4)."""
    return str(uuid.uuid4())


def current_request_id() -> str | None:
    """The id of the open call in this async context, or None."""
    return _current.get()


def reset_request_id() -> None:
    """Close the open call in this async context."""
    _current.set(None)


def resolve_request_id(event: str, explicit: str | None = None) -> str | None:
    """The request id for `event`; opens or closes the call if the event does.

    Args:
        event: Event name; an event that is not listed in this file gets only an explicit id.
        explicit: An id already in the event's data.
    """
    if event in REQUEST_EVENTS:
        request_id = explicit or new_request_id()
        _current.set(request_id)
        return request_id
    request_id = explicit or _current.get()
    if event in TERMINAL_EVENTS:
        _current.set(None)
        return request_id
    return request_id if event in INTERIM_EVENTS else explicit
