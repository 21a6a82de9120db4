"""Which model call an event belongs to: a request id that follows the async context.

A request event opens a call, interim events echo its id, a terminal event echoes
and closes it. An id given explicitly always wins.
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
    """A fresh id (uuid4)."""
    return str(uuid.uuid4())


def current_request_id() -> str | None:
    """The id of the call open in this async context, if one is."""
    return _current.get()


def reset_request_id() -> None:
    """Forget the call open in this async context."""
    _current.set(None)


def resolve_request_id(event: str, explicit: str | None = None) -> str | None:
    """The id `event` carries, opening or closing the call as the event demands.

    Args:
        event: Event name; one outside this module's sets carries only an explicit id.
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
