"""The hook registry: registers handlers and emits events."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from amplifier_core import correlation, events
from amplifier_core._foreign import code_name, current_owner
from amplifier_core._hook_calls import (
    Handler,
    Registration,
    as_fields,
    call_handler,
    call_handlers,
    passed_on,
)
from amplifier_core.cancellation import task_cancel_count
from amplifier_core.models import HookResult
from amplifier_support.clock import utc_now

__all__ = ["HookRegistry", "HookResult"]

logger = logging.getLogger(__name__)


class HookRegistry:
    """Handlers by event, in order of priority (Hook Contract, Event Registration)."""

    SESSION_START = events.SESSION_START
    SESSION_END = events.SESSION_END
    PROMPT_SUBMIT = events.PROMPT_SUBMIT
    TOOL_PRE = events.TOOL_PRE
    TOOL_POST = events.TOOL_POST
    CONTEXT_PRE_COMPACT = events.CONTEXT_PRE_COMPACT
    ORCHESTRATOR_COMPLETE = events.ORCHESTRATOR_COMPLETE
    USER_NOTIFICATION = events.USER_NOTIFICATION

    def __init__(self) -> None:
        # Tuples are replaced, never changed: an emit in progress keeps the handlers it started with.
        self._by_event: dict[str, tuple[Registration, ...]] = {}
        self._defaults: dict[str, Any] = {}
        self._registered = 0

    def register(
        self, event: str, handler: Handler, priority: int = 0, name: str | None = None
    ) -> Callable[[], None]:
        """Call `handler` on `event`.

        Args:
            event: Exact event name; wildcards are not supported.
            handler: ``(event, data) -> HookResult | dict | None``, sync or async.
            priority: Lower runs earlier; equal priorities run in order of registration.
            name: For `unregister`, listings and messages; several handlers may share one.
                Default: the names of its module and function.

        Returns:
            A function that removes this handler; calling it again does nothing.

        Raises:
            TypeError: `handler` is not callable or `priority` is not an int.
        """
        if not callable(handler):
            raise TypeError(f"handler for {event!r} must be callable, not {handler!r}")
        if not isinstance(priority, int):
            raise TypeError(f"priority of a handler for {event!r} must be an int, not {priority!r}")
        self._registered += 1
        owner = current_owner()
        name = name or code_name(handler, owner)
        entry = Registration(priority, self._registered, name, handler, owner)
        present = self._by_event.get(event, ())
        self._by_event[event] = tuple(sorted((*present, entry), key=lambda item: item[:2]))

        def unregister() -> None:
            self._by_event[event] = tuple(e for e in self._by_event[event] if e is not entry)

        return unregister

    on = register

    def unregister(self, name: str) -> None:
        """Remove the handler with this name; of several, the one registered last."""
        found = [
            (entry.order, event, entry)
            for event, entries in self._by_event.items()
            for entry in entries
            if entry.name == name
        ]
        if found:
            _, event, last = max(found, key=lambda item: item[0])
            self._by_event[event] = tuple(e for e in self._by_event[event] if e is not last)

    def list_handlers(self, event: str | None = None) -> dict[str, list[str]]:
        """Names of the handlers by event, in the order they run."""
        if event is not None:
            return {event: [entry.name for entry in self._by_event.get(event, ())]}
        return {key: [entry.name for entry in entries] for key, entries in self._by_event.items()}

    def set_default_fields(self, **fields: Any) -> None:
        """Set fields to add to every event that does not have them; replaces earlier defaults."""
        self._defaults = fields

    async def emit(self, event: str, data: Any) -> HookResult:
        """Run the handlers of `event` in order and merge their results.

        Args:
            event: Event name.
            data: The event's data, normally a dict; handlers cannot change it. A pydantic
                model is converted to its fields. Other values are passed on unchanged.

        Returns:
            The strongest result. Its `data` is the event's final data; if there are handlers, it
            includes the registry's default fields and a UTC `timestamp`.
        """
        if type(data) is not dict:
            data = as_fields(data)
        if event in correlation.CORRELATED_EVENTS and isinstance(data, dict):
            data = _with_request_id(event, cast("dict[str, Any]", data))
        handlers = self._by_event.get(event)
        if not handlers:
            return passed_on(data)
        if isinstance(data, dict):
            data = {**self._defaults, **data, "timestamp": utc_now().isoformat()}
        return await call_handlers(event, data, handlers)

    async def emit_and_collect(
        self, event: str, data: Any, timeout: float = 1.0
    ) -> list[dict[str, Any]]:
        """The data of every result that has data, regardless of its action.

        Args:
            event: Event name.
            data: As for `emit`; default fields and timestamp are not added.
            timeout: Seconds to wait for each handler.

        Raises:
            TypeError: `timeout` is not a number.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
        collected: list[dict[str, Any]] = []
        data, cancels = as_fields(data), task_cancel_count()
        for entry in self._by_event.get(event, ()):
            try:
                async with asyncio.timeout(timeout):
                    answer = await call_handler(entry, event, data, cancels)
            except TimeoutError:
                logger.warning("%s did not respond to %s within %s s", entry, event, timeout)
                continue
            if answer is not None and answer.data is not None:
                collected.append(answer.data)
        return collected


def _with_request_id(event: str, data: dict[str, Any]) -> dict[str, Any]:
    explicit = data.get(correlation.REQUEST_ID_FIELD)
    request_id = correlation.resolve_request_id(event, explicit)
    return data if request_id is None else {**data, correlation.REQUEST_ID_FIELD: request_id}
