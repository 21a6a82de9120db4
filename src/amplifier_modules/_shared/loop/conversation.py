"""Access to the context for the loops."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

from amplifier_core._foreign import blame, where_defined
from amplifier_modules._shared.history.values import as_mapping, call_ids
from amplifier_modules._shared.loop.replies import join_text, read_blocks


async def add_message(context: Any, message: dict[str, Any]) -> None:
    """Add a message to the context."""
    added = context.add_message(message)
    if inspect.isawaitable(added):
        await added


async def stored_messages(context: Any) -> list[Any]:
    """All messages of the context, not compacted."""
    messages = context.get_messages()
    return await messages if inspect.isawaitable(messages) else messages


async def last_answer(context: Any) -> str:
    """The text of the last message if it is an answer without tool calls, else an empty one."""
    messages = await stored_messages(context)
    last: dict[str, Any] = dict(as_mapping(messages[-1]) or {}) if messages else {}
    is_answer = last.get("role") == "assistant" and not call_ids(last)
    return join_text(read_blocks(last)) if is_answer else ""


async def request_view(context: Any, provider: Any, token_budget: int | None = None) -> list[Any]:
    """The messages that the context selects for this provider or token budget.

    Raises:
        TypeError: The context did not return a list.
    """
    call = "get_messages_for_request"
    for_request = getattr(context, call, None)
    if callable(for_request):
        budget = {} if token_budget is None else {"token_budget": token_budget}
        messages: Any = for_request(provider=provider, **budget)
    else:
        call = "get_messages"
        messages = context.get_messages()
    if inspect.isawaitable(messages):
        messages = await messages
    if isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Iterable):
        raise _not_messages(context, call, messages)
    return list(cast("Iterable[Any]", messages))


def _not_messages(context: Any, call: str, messages: Any) -> TypeError:
    # Hosts wrap contexts to save what is added; report the wrapped one.
    context = getattr(context, "inner", context)
    given = "None" if messages is None else f"a value of type {type(messages).__name__}"
    where = where_defined(getattr(context, call))
    fault = f"{call}() returned {given}, expected a list of messages ({where})"
    error = TypeError(fault)
    blame(error, kind="context", obj=context, fault=fault)
    return error
