"""The hook registry: register handlers, call them for an event one after the other, merge their results.

A handler runs in the caller's task, with its own copy of the event's data and of the context variables. It
may change its data without affecting other handlers. Copying everything up front would make each event as
expensive as the conversation it refers to; an event costs only its top-level keys, and a nested value is
copied when a handler accesses it.

A handler that fails is logged and skipped; an invalid result denies the event.
Precedence of results: deny > ask_user > inject_context > modify > continue.
"""

import asyncio
import copy
import inspect
import logging
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Self, cast, get_args

from pydantic import BaseModel

from amplifier_core import events
from amplifier_core._foreign import (
    Owner,
    code_name,
    current_owner,
    describe_exception,
    describe_owner,
    log_failure,
    where_defined,
)
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.models import (
    HookAction,
    HookResult,
    ToolResult,
    join_injections,
    to_injection,
)
from amplifier_support.clock import utc_now
from amplifier_support.named_tuple import NamedTuple

__all__ = [
    "INVALID_RESPONSE",
    "Handler",
    "HookRegistry",
    "HookResult",
    "InContext",
    "Registration",
    "as_fields",
    "call_handler",
    "call_handlers",
    "passed_on",
]

logger = logging.getLogger(__name__)

_ATOMIC = frozenset({str, int, float, bool, bytes, type(None), complex, range, frozenset})
_AS_TEXT = frozenset({Decimal, datetime, date, time})
"""Types without a JSON form. Handlers receive them as text, so that they can serialize their data."""
_MAX_DEPTH = 100
"""Nesting depth beyond which a value becomes text; a value may refer to itself."""


class PlainData(dict[str, Any]):
    """JSON-compatible data with attribute access: ``data["output"]`` and ``data.output``.

    Serves both handlers that expect typed objects and handlers that expect or serialize a dict.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The data as a plain dict."""
        return dict(self)

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with updated values, as for a pydantic model."""
        return type(self)({**(copy.deepcopy(self) if deep else self), **(update or {})})


class ToolResultData(PlainData):
    """A tool's result in events: ``success``, ``output``, ``error`` and, if present, ``content``."""

    @classmethod
    def of(cls, result: ToolResult) -> "ToolResultData":
        content = {"content": plain(result.content)} if result.content else {}
        data = cls(success=result.success, output=plain(result.output), error=plain(result.error))
        return cls({**data, **content})

    def __getattr__(self, name: str) -> Any:
        return self.get("content") if name == "content" else super().__getattr__(name)

    @property
    def is_error(self) -> bool:
        return not self["success"]

    def get_serialized_output(self) -> str:
        """See `ToolResult.get_serialized_output`."""
        return ToolResult.model_validate(dict(self)).get_serialized_output()

    def __str__(self) -> str:
        return str(ToolResult.model_validate(dict(self)))


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Convert `value` for JSON: mappings, models and dataclasses become `PlainData`, other objects text.

    `above` has the ids of the values that contain it: one that contains itself twice would otherwise be
    converted 2**100 times.
    """
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, Enum)):
        return value
    if len(above) < _MAX_DEPTH and id(value) not in above:
        above = (*above, id(value))
        fields_of = _read_fields(value)
        if fields_of is not None:
            return PlainData({str(key): plain(item, above) for key, item in fields_of.items()})
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, above) for item in cast("Iterable[Any]", value)]
        if isinstance(value, Enum):
            return plain(value.value, above)
    elif isinstance(value, (Mapping, list, tuple, set, frozenset, BaseModel)):
        # Its text would be nested as deep.
        return f"<{type(value).__name__} nested too deeply>"
    return str(value)


def _read_fields(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value)
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.model_extra or {})}
    if is_dataclass(value) and not isinstance(value, type):
        to_dict = getattr(value, "to_dict", None)
        if callable(to_dict):
            return cast("Mapping[Any, Any]", to_dict())
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
        return {name: getattr(value, name) for name in names}
    return None


def _isolated(value: Any, copies: dict[int, Any]) -> Any:
    """`value`, or a copy of it if it is mutable data.

    Containers, pydantic models and dataclasses are data; models and dataclasses become `PlainData`,
    subclasses of list and dict plain lists and dicts. Other objects, such as a provider or a client,
    have behaviour and identity and are shared.
    `copies` maps the ids of values already copied to their copies, so that data may refer to itself.
    """
    kind = type(value)
    if kind in _ATOMIC:
        return value
    if kind in _AS_TEXT:
        return str(value)
    known = copies.get(id(value))
    if known is not None:
        return known
    if isinstance(value, list):
        twin: Any = []
        copies[id(value)] = twin
        twin.extend([_isolated(item, copies) for item in cast("list[Any]", value)])
    elif isinstance(value, dict):
        twin = kind() if issubclass(kind, PlainData) else {}
        copies[id(value)] = twin
        for key, item in cast("dict[Any, Any]", value).items():
            twin[key] = _isolated(item, copies)
    elif kind is tuple or kind is set:
        twin = kind([_isolated(item, copies) for item in value])
    elif isinstance(value, tuple) and hasattr(kind, "_make"):
        twin = kind._make([_isolated(item, copies) for item in cast("tuple[Any, ...]", value)])
    elif kind is bytearray:
        twin = value[:]
    elif isinstance(value, ToolResult):
        twin = ToolResultData.of(value)
    elif isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        twin = plain(value)
    else:
        return value
    return twin


class EventData(dict[str, Any]):
    """The data of one event for one handler.

    Every read access returns isolated values: subscripting, `get`, iteration over values
    and items, and `copy`. Overriding `__iter__` turns off CPython's shortcut for exact
    dicts, so ``dict(data)`` and ``{**data}`` are isolated as well.
    """

    __slots__ = ("_isolated_keys",)

    def __init__(self, source: dict[str, Any]) -> None:
        dict.__init__(self, source)
        self._isolated_keys: set[str] = set()

    def _touch(self, key: str, value: Any) -> Any:
        if type(value) in _ATOMIC or key in self._isolated_keys:
            return value
        own = _isolated(value, {})
        dict.__setitem__(self, key, own)
        self._isolated_keys.add(key)
        return own

    def __getitem__(self, key: str) -> Any:
        return self._touch(key, dict.__getitem__(self, key))

    def __setitem__(self, key: str, value: Any) -> None:
        dict.__setitem__(self, key, value)
        # A value set by the handler is its own and must stay the same object.
        self._isolated_keys.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        # Replaces the value by its own copy.
        self.get(key)
        return dict.pop(self, key, *default)

    def popitem(self) -> tuple[str, Any]:
        key = next(reversed(list(self)))
        return key, self.pop(key)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> "EventData":  # type: ignore[override]
        self.update(other)
        return self

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)

    def values(self) -> Any:
        return dict(self).values()

    def items(self) -> Any:
        return dict(self).items()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


INVALID_RESPONSE = "Hook handler returned invalid response"
_ACTIONS = get_args(HookAction)


Handler = Callable[[str, Any], Any]
"""``(event, data) -> HookResult | dict | None``, sync or async."""


class Registration(NamedTuple):
    """A registered handler; sorts by priority, then by order of registration."""

    priority: int
    order: int
    name: str
    handler: Handler
    owner: Owner | None

    def __str__(self) -> str:
        return f"Handler '{self.name}' of {describe_owner(self.handler, self.owner)}"


async def call_handlers(event: str, data: Any, handlers: tuple[Registration, ...]) -> HookResult:
    """Call every handler in order and merge their results."""
    question: HookResult | None = None
    injections: list[tuple[str, HookResult]] = []
    changes: list[tuple[str, dict[str, Any]]] = []
    cancels = task_cancel_count()
    for entry in handlers:
        answer = await call_handler(entry, event, data, cancels)
        if answer is None:
            continue
        action = answer.action
        if action == "continue":
            continue
        if action == "deny":
            return _with_data(answer, data)
        changed = as_fields(answer.data)
        if action == "modify" and (changed is None or isinstance(changed, dict)):
            if changed is not None:
                data = changed
                changes.append((entry.name, changed))
        elif action == "ask_user":
            question = question or answer
        elif action == "inject_context":
            if answer.context_injection is not None:
                injections.append((entry.name, answer))
        else:
            # A result can be changed after validation; an invalid one denies the event.
            return _with_data(_denial(entry, event, f"action {action!r} with this data"), data)
    if question is not None:
        return _with_data(question, data, changes)
    if injections:
        return _with_data(_merged(event, injections), data, changes)
    if not changes:
        return passed_on(data)
    result = passed_on(data, "modify")
    result.changes = changes
    return result


async def call_handler(
    entry: Registration, event: str, data: Any, cancels: int
) -> HookResult | None:
    """Call one handler and return its result; None if it failed or returned None.

    `cancels` is the running task's `task_cancel_count` before the handlers ran.
    """
    view = EventData(cast("dict[str, Any]", data)) if isinstance(data, dict) else data
    try:
        context = copy_context()
        answer = context.run(entry.handler, event, view)
        if inspect.iscoroutine(answer):
            answer = await InContext(answer, context)
        if answer is None or isinstance(answer, HookResult):
            return answer
        return _as_result(entry, event, answer)
    # Handlers are foreign code: one that fails is skipped and the event continues.
    except BaseException as error:
        if not is_failure(error, cancels):
            raise
        if isinstance(error, RecursionError) and _is_nested():
            # Probably a handler that emits its own event; the outermost call has room to report it.
            raise
        log_failure(
            *(logger, f"Handler '{entry.name}'", entry.handler, entry.owner, error),
            then="it was skipped and the event continued",
            event=event,
        )
        return None


def _is_nested() -> bool:
    """Return True if the handler that `call_handler` has called was itself reached from a handler."""
    frame = inspect.currentframe()
    # Past the frame of the caller.
    frame = frame and frame.f_back and frame.f_back.f_back
    while frame is not None and frame.f_code is not call_handler.__code__:
        frame = frame.f_back
    return frame is not None


class InContext:
    """Awaits `coroutine` with each step run in `context`, so that variables it sets stay there.

    It runs in the caller's task instead of a new one: cancelling the caller reaches it, and no
    extra iteration of the event loop is needed.
    """

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coroutine = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, run = self._coroutine, self._context.run
        try:
            waits_for = run(coroutine.send, None)
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:
                    waits_for = run(coroutine.throw, error)
                else:
                    waits_for = run(coroutine.send, sent)
        except StopIteration as done:
            return done.value


# Reading and creating results


def as_fields(data: Any) -> Any:
    """A pydantic model as a dict of its fields; any other value unchanged."""
    return data.model_dump(mode="json") if isinstance(data, BaseModel) else data


def _as_result(entry: Registration, event: str, answer: Any) -> HookResult:
    """Convert a handler's return value to a result; an invalid value denies the event."""
    dump = getattr(answer, "model_dump", None)
    try:
        fields = dump() if callable(dump) else answer
        if not isinstance(fields, dict):
            return _denial(entry, event, f"{type(answer).__name__}, not a HookResult")
        action = cast("dict[str, Any]", fields).get("action", "continue")
        if action not in _ACTIONS:
            valid = ", ".join(_ACTIONS)
            return _denial(entry, event, f"the action {action!r} (valid: {valid})")
        return HookResult.model_validate(fields)
    # Foreign objects may raise anything when read; that makes the result invalid.
    except Exception as error:
        return _denial(entry, event, f"an invalid result: {describe_exception(error, None)}")


def _denial(entry: Registration, event: str, answer: str) -> HookResult:
    """The result for an event whose handler returned an invalid value."""
    where = where_defined(entry.handler)
    logger.error("%s (%s) answered %s with %s; the event was denied", entry, where, event, answer)
    return HookResult(action="deny", reason=INVALID_RESPONSE)


def _with_data(
    result: HookResult, data: Any, changes: Sequence[tuple[str, dict[str, Any]]] = ()
) -> HookResult:
    """`result` with the final data of the event, and the handlers that changed it."""
    final = data if isinstance(data, dict) else {}
    return result.model_copy(update={"data": final, "changes": [*changes]})


def _merged(event: str, injections: list[tuple[str, HookResult]]) -> HookResult:
    """Merge the injections into one result; `context_injections` lists each of them."""
    items = [to_injection(answer, name, event) for name, answer in injections]
    first = injections[0][1]
    if len(items) == 1:
        return first.model_copy(update={"context_injections": items})
    return join_injections(items, suppress_output=first.suppress_output)


# Taken from the fields: creating a HookResult would build its validator, which a session
# without hook results never needs.
_continue_fields = {name: field.default for name, field in HookResult.model_fields.items()}
_continue_set = frozenset({"action", "data"})


def passed_on(data: Any, action: str = "continue") -> HookResult:
    """``HookResult(action=action, data=data)`` without validation.

    Validation would be most of the cost of an event without handlers. A result's data is a
    dict; data of another type is dropped.
    """
    result = HookResult.__new__(HookResult)
    own = {**_continue_fields, "action": action, "context_injections": [], "changes": []}
    own["data"] = data if isinstance(data, dict) else {}
    set_slot = object.__setattr__
    set_slot(result, "__dict__", own)
    set_slot(result, "__pydantic_fields_set__", set(_continue_set))
    set_slot(result, "__pydantic_extra__", None)
    set_slot(result, "__pydantic_private__", None)
    return result


# Each model call has a request id in the async context. A request event opens a call, interim events carry
# its id, and a terminal event carries the id and closes the call. An explicit id takes precedence.

REQUEST_ID_FIELD = "request_id"
REQUEST_EVENTS = frozenset({"llm:request"})
TERMINAL_EVENTS = frozenset({"llm:response", "provider:error"})
INTERIM_EVENTS = frozenset({"provider:retry", "provider:throttle"})
CORRELATED_EVENTS = REQUEST_EVENTS | TERMINAL_EVENTS | INTERIM_EVENTS

_request_id: ContextVar[str | None] = ContextVar("amplifier_request_id", default=None)


def new_request_id() -> str:
    """A new id (uuid4)."""
    return str(uuid.uuid4())


def current_request_id() -> str | None:
    """The id of the open call in this async context, or None."""
    return _request_id.get()


def reset_request_id() -> None:
    """Close the open call in this async context."""
    _request_id.set(None)


def resolve_request_id(event: str, explicit: str | None = None) -> str | None:
    """The request id for `event`; opens or closes the call if the event does.

    Args:
        event: Event name; an event that is not listed above gets only an explicit id.
        explicit: An id already in the event's data.
    """
    if event in REQUEST_EVENTS:
        request_id = explicit or new_request_id()
        _request_id.set(request_id)
        return request_id
    request_id = explicit or _request_id.get()
    if event in TERMINAL_EVENTS:
        _request_id.set(None)
        return request_id
    return request_id if event in INTERIM_EVENTS else explicit


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
        self._by_event[event] = tuple(sorted((*present, entry))) if present else (entry,)

        def unregister() -> None:
            self._by_event[event] = tuple(e for e in self._by_event[event] if e is not entry)

        return unregister

    on = register

    def unregister(self, name: str) -> None:
        """Remove the handler with this name; of several, the one registered last."""
        matches = [(entry.order, event) for event, entry in self._entries() if entry.name == name]
        if matches:
            last, event = max(matches)
            self._by_event[event] = tuple(e for e in self._by_event[event] if e.order != last)

    def find_owner(self, name: str) -> str | None:
        """The id of the module that registered the handler with this name; None if there is none."""
        owners = [entry.owner for _, entry in self._entries() if entry.name == name]
        return next((owner.module_id for owner in owners if owner is not None), None)

    def _entries(self) -> Iterator[tuple[str, Registration]]:
        for event, entries in self._by_event.items():
            yield from ((event, entry) for entry in entries)

    def registrations(self) -> dict[str, tuple[Registration, ...]]:
        """The registered handlers by event, in the order they run."""
        return dict(self._by_event)

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
        if event in CORRELATED_EVENTS and isinstance(data, dict):
            field = REQUEST_ID_FIELD
            request_id = resolve_request_id(event, data.get(field))
            data = data if request_id is None else {**data, field: request_id}
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
