"""Call the handlers of an event one after the other and merge their results.

A handler gets its own copy of the data and of the context variables and runs in the
caller's task. A handler that fails is logged and skipped; an invalid result denies the
event.

Precedence of results: deny > ask_user > inject_context > modify > continue.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, NamedTuple, cast, get_args

from pydantic import BaseModel

from amplifier_core._event_data import EventData
from amplifier_core._foreign import (
    Owner,
    describe_exception,
    describe_owner,
    log_failure,
    where_defined,
)
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.models import ContextInjection, HookAction, HookResult

__all__ = [
    "INVALID_RESPONSE",
    "Handler",
    "InContext",
    "Registration",
    "as_fields",
    "call_handler",
    "call_handlers",
    "passed_on",
]

logger = logging.getLogger(__name__)

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
    modified = False
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
                modified = True
        elif action == "ask_user":
            question = question or answer
        elif action == "inject_context":
            if answer.context_injection is not None:
                injections.append((entry.name, answer))
        else:
            # A result can be changed after validation; an invalid one denies the event.
            return _with_data(_denial(entry, event, f"action {action!r} with this data"), data)
    if question is not None:
        return _with_data(question, data)
    if injections:
        return _with_data(_merged(event, injections), data)
    return passed_on(data, "modify" if modified else "continue")


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
    """Whether the handler that `call_handler` has called was itself reached from a handler."""
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


def _with_data(result: HookResult, data: Any) -> HookResult:
    """`result` with the final data of the event."""
    return result.model_copy(update={"data": data if isinstance(data, dict) else {}})


def _merged(event: str, injections: list[tuple[str, HookResult]]) -> HookResult:
    """Merge the injections into one result; `context_injections` lists each of them."""
    items = [
        ContextInjection(
            content=answer.context_injection or "",
            role=answer.context_injection_role,
            ephemeral=answer.ephemeral,
            append_to_last_tool_result=answer.append_to_last_tool_result,
            hook_name=name,
            event=event,
        )
        for name, answer in injections
    ]
    first = injections[0][1]
    if len(injections) == 1:
        return first.model_copy(update={"context_injections": items})
    return HookResult(
        action="inject_context",
        context_injection="\n\n".join(item.content for item in items),
        context_injection_role=first.context_injection_role,
        ephemeral=first.ephemeral,
        suppress_output=first.suppress_output,
        append_to_last_tool_result=any(item.append_to_last_tool_result for item in items),
        context_injections=items,
    )


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
    own = {**_continue_fields, "action": action, "context_injections": []}
    own["data"] = data if isinstance(data, dict) else {}
    set_slot = object.__setattr__
    set_slot(result, "__dict__", own)
    set_slot(result, "__pydantic_fields_set__", set(_continue_set))
    set_slot(result, "__pydantic_extra__", None)
    set_slot(result, "__pydantic_private__", None)
    return result
