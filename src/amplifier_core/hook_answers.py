"""Reading what a hook's handler answered, and merging several answers into one."""

import logging
from typing import Any

from amplifier_core.models import ContextInjection, HookResult

__all__ = ["INVALID_RESPONSE", "denied", "merged", "passed_on", "read_answer", "with_data"]

logger = logging.getLogger(__name__)

INVALID_RESPONSE = "Hook handler returned invalid response"

# Read from the fields: making a HookResult would build its validator, which a session whose
# handlers have no opinion never needs.
_continue_fields = {name: field.default for name, field in HookResult.model_fields.items()}
_continue_set = frozenset({"action", "data"})


def passed_on(data: Any, action: str = "continue") -> HookResult:
    """``HookResult(action=action, data=data)`` without validation, which is most of what an
    event costs when nobody listens. Data that is no dict has no place in a result."""
    result = HookResult.__new__(HookResult)
    set_slot = object.__setattr__
    set_slot(
        result,
        "__dict__",
        {
            **_continue_fields,
            "action": action,
            "data": data if isinstance(data, dict) else {},
            "context_injections": [],
        },
    )
    set_slot(result, "__pydantic_fields_set__", set(_continue_set))
    set_slot(result, "__pydantic_extra__", None)
    set_slot(result, "__pydantic_private__", None)
    return result


def with_data(result: HookResult, data: Any) -> HookResult:
    """`result` with the data as the handlers left it."""
    return result.model_copy(update={"data": data if isinstance(data, dict) else {}})


def merged(event: str, injections: list[tuple[str, HookResult]]) -> HookResult:
    """One inject_context result for all of them; `context_injections` keeps them apart."""
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


def read_answer(handler_name: str, event: str, answer: Any) -> HookResult | None:
    """What a handler returned, as a result; None when it has no opinion.

    A handler that answers nonsense has not decided: whatever cannot be read denies.
    """
    if answer is None or isinstance(answer, HookResult):
        return answer
    dump = getattr(answer, "model_dump", None)
    try:
        fields = dump() if callable(dump) else answer
        if isinstance(fields, dict):
            return HookResult.model_validate(fields)
    # Foreign objects: whatever goes wrong in reading one, it is no answer.
    except Exception as error:
        return denied(handler_name, event, f"an invalid result: {error}")
    return denied(handler_name, event, f"{type(answer).__name__}, not a HookResult")


def denied(handler_name: str, event: str, answer: str) -> HookResult:
    """What becomes of an event on which a handler answered nonsense."""
    logger.error("Hook %r on %s answered %s", handler_name, event, answer)
    return HookResult(action="deny", reason=INVALID_RESPONSE)
