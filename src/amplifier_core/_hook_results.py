"""Apply a hook's result to the session: injections, messages to the user, approvals."""

import inspect
import logging
from typing import Any, Protocol

from amplifier_core.approval import ApprovalSystem, ApprovalTimeoutError
from amplifier_core.display import DisplaySystem
from amplifier_core.models import ContextInjection, HookResult
from amplifier_core.utils.truncate import strip_control_characters
from amplifier_support.clock import utc_now

logger = logging.getLogger(__name__)

CHARACTERS_PER_TOKEN = 4
DEFAULT_OPTIONS = ("Allow", "Deny")
_ALLOWING = frozenset({"allow", "allow once", "allow always"})


class ResultScope(Protocol):
    """The part of the coordinator that processing a result needs."""

    approval_system: ApprovalSystem | None
    display_system: DisplaySystem | None
    injected_tokens: int

    @property
    def injection_budget_per_turn(self) -> int | None: ...

    @property
    def injection_size_limit(self) -> int | None: ...

    def get(self, mount_point: str, name: str | None = None) -> Any: ...


async def process(scope: ResultScope, result: HookResult, event: str, hook_name: str) -> HookResult:
    """Apply `result` and return what is left for the caller to handle.

    Raises:
        ValueError: An injection exceeds the session's limit; nothing was stored.
    """
    if result.action == "ask_user":
        return await _ask(scope, result)
    items = _injections(scope, result, event, hook_name)
    _show_message(scope, result, hook_name)
    if result.suppress_output:
        logger.debug("Hook %r on %s suppressed its output", hook_name, event)
    if result.action != "inject_context":
        return result
    return _remaining(result, await _persist(scope, items))


def _injections(
    scope: ResultScope, result: HookResult, event: str, hook_name: str
) -> list[ContextInjection]:
    if result.action != "inject_context":
        return []
    items = result.context_injections
    if not items and result.context_injection:
        items = [
            ContextInjection(
                content=result.context_injection,
                role=result.context_injection_role,
                ephemeral=result.ephemeral,
                append_to_last_tool_result=result.append_to_last_tool_result,
                hook_name=hook_name,
                event=event,
            )
        ]
    items = [
        item.model_copy(update={"content": strip_control_characters(item.content)})
        for item in items
    ]
    items = [item for item in items if item.content]
    _check_limits(scope, items)
    return items


def _check_limits(scope: ResultScope, items: list[ContextInjection]) -> None:
    limit, budget = scope.injection_size_limit, scope.injection_budget_per_turn
    for item in items:
        if limit is not None and len(item.content) > limit:
            raise ValueError(
                f"Context injection exceeds {limit} characters: hook {item.hook_name!r} "
                f"injected {len(item.content)} on {item.event}"
            )
    scope.injected_tokens += sum(len(item.content) // CHARACTERS_PER_TOKEN for item in items)
    if budget is not None and scope.injected_tokens > budget:
        logger.warning(
            "Hooks injected about %d tokens this turn, over the budget of %d",
            scope.injected_tokens,
            budget,
        )


async def _persist(scope: ResultScope, items: list[ContextInjection]) -> list[ContextInjection]:
    """Store the persistent injections and return the ephemeral ones."""
    add_message = getattr(scope.get("context"), "add_message", None)
    for item in items:
        if item.ephemeral:
            continue
        if add_message is None:
            logger.debug("No context is mounted; dropped the text of hook %r", item.hook_name)
            continue
        added = add_message(_message(item))
        if inspect.isawaitable(added):
            await added
    return [item for item in items if item.ephemeral]


def _message(item: ContextInjection) -> dict[str, Any]:
    return {
        "role": item.role,
        "content": item.content,
        "metadata": {
            "source": "hook",
            "hook_name": item.hook_name,
            "event": item.event,
            "timestamp": utc_now().isoformat(),
            "requested_role": item.role,
            "ephemeral": False,
            "persisted": True,
        },
    }


def _remaining(result: HookResult, items: list[ContextInjection]) -> HookResult:
    """`result` without the injections that were stored."""
    kept = {
        name: getattr(result, name)
        for name in (
            "data",
            "reason",
            "suppress_output",
            "user_message",
            "user_message_level",
            "user_message_source",
        )
    }
    if not items:
        return HookResult(action="continue", **kept)
    return HookResult(
        action="inject_context",
        context_injection="\n\n".join(item.content for item in items),
        context_injection_role=items[0].role,
        ephemeral=True,
        append_to_last_tool_result=any(item.append_to_last_tool_result for item in items),
        context_injections=items,
        **kept,
    )


def _show_message(scope: ResultScope, result: HookResult, hook_name: str) -> None:
    if not result.user_message:
        return
    source = f"hook:{result.user_message_source or hook_name}"
    if scope.display_system is None:
        logger.debug("No display system for the message of %s: %s", source, result.user_message)
        return
    try:
        scope.display_system.show_message(result.user_message, result.user_message_level, source)
    # The display belongs to the app: a message that cannot be shown must not stop the turn.
    except Exception:
        logger.exception("Cannot display a message of %s", source)


async def _ask(scope: ResultScope, result: HookResult) -> HookResult:
    if scope.approval_system is None:
        return _decided(result, "deny", "No approval system available")
    prompt = result.approval_prompt or "Allow this operation?"
    options = result.approval_options or list(DEFAULT_OPTIONS)
    try:
        answer = scope.approval_system.request_approval(
            prompt, options, result.approval_timeout, result.approval_default
        )
        if inspect.isawaitable(answer):
            answer = await answer
    except ApprovalTimeoutError:
        if result.approval_default == "allow":
            return _decided(result, "continue")
        return _decided(result, "deny", f"Approval timeout after {result.approval_timeout:g} s")
    if isinstance(answer, str) and answer.strip().lower() in _ALLOWING:
        return _decided(result, "continue")
    return _decided(result, "deny", f"User denied: {prompt}")


def _decided(result: HookResult, action: Any, reason: str | None = None) -> HookResult:
    return HookResult(action=action, reason=reason, data=result.data)
