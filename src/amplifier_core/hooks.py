"""Ordered dispatch of events to handlers, and the merging of what they answer.

A handler sees its own copy of the data and of the context variables, runs in the
caller's task, and can never break an event by failing: it is logged and skipped. A
handler that answers nonsense has not decided, so the event is denied.

Precedence of the answers: deny > ask_user > inject_context > modify > continue.
"""

import asyncio
import inspect
import logging
import uuid
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

from amplifier_core import correlation, events
from amplifier_core.cancellation import task_cancel_count
from amplifier_core.event_data import EventData
from amplifier_core.hook_answers import denied, merged, passed_on, read_answer, with_data
from amplifier_core.models import HookResult
from amplifier_core.utils.own_context import InContext

__all__ = ["HookRegistry", "HookResult"]

logger = logging.getLogger(__name__)


class Registration(NamedTuple):
    """A handler in its place; sorts by priority, then by the order of registration."""

    priority: int
    order: int
    name: str
    handler: Any


class HookRegistry:
    """Registers handlers and emits events (Hook Contract, Event Registration)."""

    SESSION_START = events.SESSION_START
    SESSION_END = events.SESSION_END
    PROMPT_SUBMIT = events.PROMPT_SUBMIT
    TOOL_PRE = events.TOOL_PRE
    TOOL_POST = events.TOOL_POST
    CONTEXT_PRE_COMPACT = events.CONTEXT_PRE_COMPACT
    ORCHESTRATOR_COMPLETE = events.ORCHESTRATOR_COMPLETE
    USER_NOTIFICATION = events.USER_NOTIFICATION

    def __init__(self) -> None:
        # Each tuple is replaced, never changed: an emit under way keeps the one it started with.
        self._by_event: dict[str, tuple[Registration, ...]] = {}
        self._defaults: dict[str, Any] = {}
        self._registered = 0

    def register(
        self, event: str, handler: Any, priority: int = 0, name: str | None = None
    ) -> Callable[[], None]:
        """Have `handler` called on `event`.

        Args:
            event: Exact event name; there is no wildcard.
            handler: ``(event, data) -> HookResult | dict | None``, sync or async.
            priority: Lower runs earlier; equal priorities run in order of registration.
            name: For `unregister` and listings; several handlers may share one.

        Returns:
            A function that removes this very handler; calling it again does nothing.

        Raises:
            TypeError: `priority` is not an int.
        """
        if not isinstance(priority, int):
            raise TypeError(f"priority of a handler for {event!r} must be an int, not {priority!r}")
        self._registered += 1
        name = name or f"_auto_{event}_{uuid.uuid4()}"
        entry = Registration(priority, self._registered, name, handler)
        present = self._by_event.get(event, ())
        self._by_event[event] = tuple(sorted((*present, entry), key=lambda item: item[:2]))

        def unregister() -> None:
            self._by_event[event] = tuple(e for e in self._by_event[event] if e is not entry)

        return unregister

    on = register

    def unregister(self, name: str) -> None:
        """Remove the handler of this name; of several, the one registered last."""
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
        """Fields every event's data gets unless it has its own; replaces earlier defaults."""
        self._defaults = fields

    async def emit(self, event: str, data: Any) -> HookResult:
        """Run the handlers of `event` in order and merge their answers.

        Args:
            event: Event name.
            data: The event's data, normally a dict, which no handler can change. A pydantic
                model counts as its fields. Anything else reaches handlers as it is.

        Returns:
            The strongest answer; its `data` is the data as the handlers left it, with the
            registry's default fields and a UTC `timestamp` where anybody listened.
        """
        if type(data) is not dict:
            data = _plain(data)
        if event in correlation.CORRELATED_EVENTS and isinstance(data, dict):
            data = _with_request_id(event, cast("dict[str, Any]", data))
        handlers = self._by_event.get(event)
        if not handlers:
            return passed_on(data)
        if isinstance(data, dict):
            data = {**self._defaults, **data, "timestamp": datetime.now(UTC).isoformat()}
        return await _dispatch(event, data, handlers)

    async def emit_and_collect(
        self, event: str, data: Any, timeout: float = 1.0
    ) -> list[dict[str, Any]]:
        """The data of every answer that has some, whatever its action.

        Args:
            event: Event name.
            data: As for `emit`, but without default fields and timestamp.
            timeout: Seconds each handler gets.

        Raises:
            TypeError: `timeout` is not a number.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
        collected: list[dict[str, Any]] = []
        data, cancels = _plain(data), task_cancel_count()
        for entry in self._by_event.get(event, ()):
            try:
                async with asyncio.timeout(timeout):
                    answer = await _answer(entry, event, data, cancels)
            except TimeoutError:
                logger.warning("Hook %r on %s gave no answer in %s s", entry.name, event, timeout)
                continue
            if answer is not None and answer.data is not None:
                collected.append(answer.data)
        return collected


def _plain(data: Any) -> Any:
    """A model as its fields and a dict of some subclass as it is; the rest is not ours to read."""
    return data.model_dump(mode="json") if isinstance(data, BaseModel) else data


def _with_request_id(event: str, data: dict[str, Any]) -> dict[str, Any]:
    explicit = data.get(correlation.REQUEST_ID_FIELD)
    request_id = correlation.resolve_request_id(event, explicit)
    return data if request_id is None else {**data, correlation.REQUEST_ID_FIELD: request_id}


async def _dispatch(event: str, data: Any, handlers: tuple[Registration, ...]) -> HookResult:
    asked: HookResult | None = None
    injections: list[tuple[str, HookResult]] = []
    modified = False
    cancels = task_cancel_count()
    for entry in handlers:
        answer = await _answer(entry, event, data, cancels)
        if answer is None:
            continue
        action = answer.action
        if action == "continue":
            continue
        if action == "deny":
            return with_data(answer, data)
        if action == "modify" and (answer.data is None or isinstance(answer.data, dict)):
            if answer.data is not None:
                data = answer.data
                modified = True
        elif action == "ask_user":
            asked = asked or answer
        elif action == "inject_context":
            if answer.context_injection is not None:
                injections.append((entry.name, answer))
        else:
            # Results can be changed after they were checked; what is no answer denies.
            return with_data(denied(entry.name, event, f"{action!r} with this data"), data)
    if asked is not None:
        return with_data(asked, data)
    if injections:
        return with_data(merged(event, injections), data)
    return passed_on(data, "modify" if modified else "continue")


async def _answer(entry: Registration, event: str, data: Any, cancels: int) -> HookResult | None:
    """What one handler wants; None when it failed or has no opinion.

    `cancels` is how often the task had met a request to stop before the handlers ran.
    """
    view = EventData(cast("dict[str, Any]", data)) if isinstance(data, dict) else data
    try:
        context = copy_context()
        answer = context.run(entry.handler, event, view)
        if inspect.iscoroutine(answer):
            answer = await InContext(answer, context)
        return read_answer(entry.name, event, answer)
    except asyncio.CancelledError:
        # Ours to pass on only if somebody cancelled the task that emits; a handler that
        # raises it on its own has merely failed.
        if task_cancel_count() > cancels:
            raise
        logger.error("Hook %r on %s raised CancelledError; skipped", entry.name, event)
    # Handlers are foreign code: one that fails is skipped and the event goes on.
    except Exception:
        logger.exception("Hook %r on %s failed; skipped", entry.name, event)
    return None
