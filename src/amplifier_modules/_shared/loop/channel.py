"""Emits a turn's events and applies the results of hooks.

With a coordinator, its `process_hook_result` stores injections, shows messages and asks for
approval, within the session's budgets. Without one the loop applies the HookResult itself
(Orchestrator Contract, Hook Processing), except that it cannot ask for approval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

from amplifier_core.models import ContextInjection
from amplifier_modules._shared.loop.conversation import add_message
from amplifier_support.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

NO_APPROVER = "approval is required, but no approval provider is available"
# Prefix of the placeholders that redaction hooks substitute for secrets.
_MASK = "[REDACTED"


class TurnDenied(Exception):
    """A hook denied a step that the turn cannot continue without."""

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(reason)
        self.event = event
        self.reason = reason


class Injection(NamedTuple):
    """Text for the next request only; `source` is the name of the hook, empty for the loop itself."""

    content: str
    role: str
    append_to_last_tool_result: bool
    source: str = ""


class Verdict(NamedTuple):
    """The hooks' decision on an event: the reason if they denied it, and its final data."""

    denied: str | None
    data: Mapping[str, Any]


class Channel:
    """The hooks of one turn.

    Args:
        hooks: The registry, or anything with `async emit(event, data)`.
        context: Where injections are stored when there is no coordinator.
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`; may be None.
        name: Source to report if a result does not name one.
    """

    def __init__(self, hooks: Any, context: Any, coordinator: Any, name: str) -> None:
        self._emit = hooks.emit
        self._list_handlers = getattr(hooks, "list_handlers", None)
        self._context = context
        self._coordinator = coordinator
        self._name = name
        self._ephemeral: list[Injection] = []
        self._held: list[tuple[Any, str]] = []
        self.partial_text = ""
        """Text of an answer that was cut off while it was streamed; empty otherwise."""
        self.has_emitted = False
        """True if any part of the current answer has been emitted; the caller resets it."""
        self.changes: Sequence[tuple[str, dict[str, Any]]] = ()
        """The hooks that changed the last event that was emitted and applied, with the data of each."""

    def has_listeners(self, event: str) -> bool:
        """Return True if an event may have a listener, so that its data is worth building."""
        if not callable(self._list_handlers):
            return True
        handlers: Any = self._list_handlers(event)
        return not isinstance(handlers, dict) or bool(cast("dict[str, Any]", handlers).get(event))

    async def emit_and_apply(
        self, event: str, data: dict[str, Any], *, hold_results: bool = False
    ) -> Verdict:
        """Emit an event that hooks may deny or change.

        Args:
            event: Event name.
            data: The event's data.
            hold_results: Hold injections until `apply_held`: nothing may come between a tool call and its
                result in the conversation.
        """
        result = await self._emit(event, data)
        action = getattr(result, "action", "continue")
        final = getattr(result, "data", None)
        if isinstance(final, dict):
            final = _without_masks(event, data, cast("dict[str, Any]", final))
        else:
            final = data
        if action == "inject_context" and hold_results:
            self._held.append((result, event))
            return Verdict(None, final)
        denied = None
        if action in ("deny", "ask_user", "inject_context") or _has_message(result):
            denied = await self._carry_out(result, event)
        self.changes = getattr(result, "changes", ())
        return Verdict(denied, final)

    async def emit_or_raise(self, event: str, data: dict[str, Any]) -> Mapping[str, Any]:
        """Emit an event whose denial ends the turn; returns the final data.

        Raises:
            TurnDenied: A hook or the user denied it.
        """
        denied, final = await self.emit_and_apply(event, data)
        if denied is not None:
            raise TurnDenied(event, denied)
        return final

    async def emit(self, event: str, data: dict[str, Any]) -> None:
        """Emit an event of a running answer; changes to its data have no effect.

        Raises:
            TurnDenied: A hook stopped the answer.
        """
        self.has_emitted = True
        result = await self._emit(event, data)
        if getattr(result, "action", "continue") in ("deny", "ask_user", "inject_context"):
            denied = await self._carry_out(result, event)
            if denied is not None:
                raise TurnDenied(event, denied)

    async def apply_held(self) -> None:
        """Apply the injections that were held."""
        held, self._held = self._held, []
        for result, event in held:
            await self._carry_out(result, event)

    def append_note(self, text: str) -> None:
        """Append `text` to the next request only."""
        self._ephemeral.append(Injection(text, "user", append_to_last_tool_result=True))

    def take_ephemeral(self) -> list[Injection]:
        """Return the texts for the next request and forget them."""
        taken, self._ephemeral = self._ephemeral, []
        return taken

    async def _carry_out(self, result: Any, event: str) -> str | None:
        """Apply `result`; returns the reason if it is a denial."""
        if self._coordinator is not None:
            try:
                result = await self._coordinator.process_hook_result(result, event, self._name)
            except ValueError as error:
                if result.action != "inject_context":
                    raise
                # An injection over the session's size limit; nothing was stored. One hook that writes
                # too much should neither end the turn nor drop the texts of others.
                logger.warning("Dropped a hook's injection on %s: %s", event, error)
                limit = getattr(self._coordinator, "injection_size_limit", None) or 0
                fitting = [item for item in _injections(result) if len(item.content) <= limit]
                if not fitting:
                    return None
                rest = result.model_copy(update={"context_injections": fitting})
                return await self._carry_out(rest, event)
            if result.action == "inject_context":
                # The coordinator has stored the permanent injections.
                self._keep_ephemeral(_injections(result))
        elif result.action == "inject_context":
            await self._store(_injections(result), event)
        elif result.action == "ask_user":
            return NO_APPROVER
        if self._coordinator is None and _has_message(result):
            logger.info("Hook on %s says: %s", event, result.user_message)
        return (result.reason or "no reason given") if result.action == "deny" else None

    async def _store(self, items: list[ContextInjection], event: str) -> None:
        self._keep_ephemeral(items)
        for item in items:
            if item.ephemeral:
                continue
            source = {"source": "hook", "hook_name": item.hook_name, "event": event}
            message = {"role": item.role, "content": item.content, "metadata": source}
            await add_message(self._context, message)

    def _keep_ephemeral(self, items: list[ContextInjection]) -> None:
        self._ephemeral += [
            Injection(item.content, item.role, item.append_to_last_tool_result, item.hook_name)
            for item in items
            if item.ephemeral
        ]


def _without_masks(event: str, data: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
    """The final data, with the original values where a hook masked them for logs.

    Published redaction hooks answer most events with a masked copy, marked `redaction: {applied:
    true}`, and expect that only later hooks read it. Masked prompts and messages would make the
    model work on, and save, different content. Every orchestrator applies changes of tool events,
    so those hooks skip them unless configured otherwise.
    """
    mark = final.get("redaction")
    if event.startswith("tool:") or not isinstance(mark, dict):
        return final
    if not cast("dict[str, Any]", mark).get("applied"):
        return final
    return {
        key: data[key] if key in data and value != data[key] and _MASK in str(value) else value
        for key, value in final.items()
    }


def _has_message(result: Any) -> bool:
    message = getattr(result, "user_message", None)
    return isinstance(message, str) and message != ""


def _injections(result: Any) -> list[ContextInjection]:
    """The non-empty texts of an inject_context result, as `ContextInjection`s."""
    items: list[ContextInjection] = list(getattr(result, "context_injections", None) or [])
    if not items and result.context_injection:
        items = [
            ContextInjection(
                content=result.context_injection,
                role=result.context_injection_role,
                ephemeral=result.ephemeral,
                append_to_last_tool_result=getattr(result, "append_to_last_tool_result", False),
            )
        ]
    return [item for item in items if item.content]


Status = Literal["success", "incomplete", "error"]

MAX_ITERATIONS_REACHED = "Max iterations reached"
OUT_OF_BUDGET = "budget"
EMPTY = "empty"
"""Reason of a turn whose answer has neither text nor tool calls."""

CUT_SHORT = ("length", "content_filter")
"""Finish reasons of an incomplete answer."""


class TurnOutcome(NamedTuple):
    """The ending of a turn.

    Attributes:
        status: Whether it is a success.
        response: The text returned.
        reason: Why it is not a success, as one word.
        error: The exception that ended it.
        details: Further data of `orchestrator:complete` about the reason.
    """

    status: Status
    response: str = ""
    reason: str | None = None
    error: BaseException | None = None
    details: Mapping[str, Any] = MappingProxyType({})


def error_data(error: BaseException) -> dict[str, Any]:
    """An error as event data."""
    if isinstance(error, asyncio.CancelledError):
        return {"type": "AbortError", "message": "interrupted", "retryable": False}
    return {
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "retryable": bool(getattr(error, "retryable", False)),
    }
