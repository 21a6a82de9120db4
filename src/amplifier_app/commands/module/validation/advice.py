"""How to mend what the kernel's validators and suites find."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amplifier_app.base.checks import Check
from amplifier_app.runtime.missing_packages import requires_hint

if TYPE_CHECKING:
    from amplifier_app.commands.module.validation.findings import Request
    from amplifier_core.validation import ValidationCheck

_TOOL_RESULT = (
    'return ToolResult(output=…), or ToolResult(success=False, error={"message": …}), '
    "on every path of execute()"
)
_HOOK_RESULT = 'return HookResult(action="continue"), or None, where there is nothing to say'
_ANY_CLEANUP = "a cleanup must bear being called whatever state the module is in"

SUITE = {
    "mount_succeeds": "mount() must bear being called again and again, with the same config",
    # provider
    "get_info_returns_valid_provider_info": "return ProviderInfo(id=…, display_name=…)",
    "list_models_returns_list": "return a list of ModelInfo, [] where there is none to tell of",
    "provider_has_name_attribute": 'give it a name = "…"',
    "parse_tool_calls_returns_list": "return list(response.tool_calls or ())",
    # tool
    "tool_has_name": 'give it a name = "…"',
    "tool_has_description": 'give it a description = "…" that tells the model when to use it',
    "tool_has_execute_method": "write 'async def execute(self, input: dict) -> ToolResult'",
    "execute_returns_tool_result": _TOOL_RESULT,
    "tool_result_has_required_fields": _TOOL_RESULT,
    "invalid_input_returns_error_result": "look at what is required first, with input.get(…), and "
    'return ToolResult(success=False, error={"message": …}) where it is missing',
    # hook
    "handler_returns_hook_result": _HOOK_RESULT,
    "hook_result_has_valid_action": _HOOK_RESULT,
    "cleanup_is_callable_if_present": "return a function without arguments, or None, from mount()",
    "cleanup_does_not_raise": _ANY_CLEANUP,
    "handler_does_not_crash_on_malformed_data": "take what it needs from data or {}",
    "handler_does_not_crash_on_empty_data": "read data with .get(…)",
    # orchestrator
    "orchestrator_has_execute_method": "write 'async def execute(self, prompt, context, "
    "providers, tools, hooks, **kwargs) -> str'",
    "execute_returns_string": "return the text of the provider's last answer",
    "execute_with_empty_prompt": "raise ValueError, or answer",
    "orchestrator_uses_provider": "await provider.complete(request) with one of 'providers'",
    "orchestrator_updates_context": "await context.add_message(…) with the prompt and each answer",
    # context
    "context_has_required_methods": "write what the page contracts/context.md names",
    "message_round_trip": "keep each message as it comes, and give all of them back",
    "multiple_messages": "keep the messages in the order they come in",
    "clear_removes_messages": "forget everything in clear()",
    "get_messages_for_request_returns_messages": "return a list that has the latest messages",
    "internal_should_compact_returns_bool": "return True or False",
    "internal_compact_does_not_crash": "compaction must bear a short conversation",
    "add_invalid_message_does_not_crash": "refuse what has no role with ValueError, or keep it",
    "get_messages_never_returns_none": "return a list, [] where there is nothing",
}
"""By the name of the suite's test, without `test_`."""

_KERNEL = {
    "protocol_compliance": "if it needs settings, give them with --config; where it cannot work, "
    "log a warning that says why and return None",
    "cleanup": _ANY_CLEANUP,
}


def for_import(error: BaseException, request: Request) -> str:
    """How to mend an import that failed."""
    name = error.name if isinstance(error, ImportError) else None
    if name:
        missing = isinstance(error, ModuleNotFoundError)
        own = (request.entry_point or request.root.stem).partition(":")[0].partition(".")[0]
        if name.partition(".")[0] == own:
            what = f"the file of {name}" if missing else f"it to {name}"
            return f"add {what}, or mend the import"
        hint = requires_hint(str(error), "its entry in the plan")
        where = f"; where you cannot change the module, {hint}" if hint else ""
        if missing:
            return f"add what provides {name} to 'dependencies' in pyproject.toml{where}"
        package = name.partition(".")[0]
        return f"set in 'dependencies' which version of {package} it needs{where}"
    if isinstance(error, SyntaxError):
        return "mend that line"
    if isinstance(error, SystemExit):
        return "a module that is imported must not end the program"
    return "do nothing that can fail while it is imported: leave it to mount()"


def for_kernel_check(
    check: ValidationCheck, kind: str, wanting: list[str], *, configured: bool
) -> Check:
    """A check of the kernel, with its advice apart from what was found.

    Args:
        check: The check.
        kind: What the module is checked as.
        wanting: Settings that the module's schema requires and its config does not have.
        configured: Whether it was given any config.
    """
    if check.passed:
        return Check(check.name, True, check.message, check.severity)
    # The kernel's messages end with what to write instead.
    match = re.fullmatch(r"(.+?); (write|expected|mount it with) (.+)", check.message, re.DOTALL)
    found, advice = check.message, _KERNEL.get(check.name)
    if match:
        found = match[1]
        advice = f"{'write' if match[2] == 'expected' else match[2]} {match[3]}"
    if "lacks members of the protocol" in found:
        advice = "add those that are named below"
    elif "(it logged: " in found:
        advice = "give it what it asks for, in its --config or the environment"
    elif kind == "provider" and "returned NoneType" in found:
        advice = (
            f"{advice}; if it wants a key, give it in its --config or the environment, and have "
            "it log a warning that says so"
        )
    elif check.name == "protocol_compliance" and wanting:
        advice = "it requires settings: give " + " ".join(f"--config {key}=…" for key in wanting)
    elif " raised " in found and configured:
        advice = "mend the --config, or what mount() makes of it"
    return Check(check.name, False, found, check.severity, advice)
