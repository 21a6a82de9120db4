"""Fixes for what the kernel's validators and suites find."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amplifier_app.base.checks import Check
from amplifier_app.sources.requirements.missing_packages import requires_hint

if TYPE_CHECKING:
    from amplifier_core.validation import ValidationCheck
    from amplifier_kit.validation.isolation import Request

ASKS = "it mounts nothing without its settings: "
"""The beginning of the finding about a module that asks for settings."""

_TOOL_RESULT = (
    'return ToolResult(output=…), or ToolResult(success=False, error={"message": …}), '
    "on every path of execute()"
)
_HOOK_RESULT = 'return HookResult(action="continue"), or None'
ANY_CLEANUP = "cleanup must be safe to call in any state"

SUITE = {
    "mount_succeeds": "mount() must work when called repeatedly with the same config",
    # provider
    "get_info_returns_valid_provider_info": "return ProviderInfo(id=…, display_name=…)",
    "list_models_returns_list": "return a list of ModelInfo, or [] if there are none",
    "provider_has_name_attribute": 'set name = "…"',
    "parse_tool_calls_returns_list": "return list(response.tool_calls or ())",
    # tool
    "tool_has_name": 'set name = "…"',
    "tool_has_description": 'set description = "…" so that the model knows when to use it',
    "tool_has_execute_method": "write 'async def execute(self, input: dict) -> ToolResult'",
    "execute_returns_tool_result": _TOOL_RESULT,
    "tool_result_has_required_fields": _TOOL_RESULT,
    "invalid_input_returns_error_result": "check required input first, with input.get(…), and "
    'return ToolResult(success=False, error={"message": …}) if it is missing',
    # hook
    "handler_returns_hook_result": _HOOK_RESULT,
    "hook_result_has_valid_action": _HOOK_RESULT,
    "cleanup_is_callable_if_present": "return a function without arguments, or None, from mount()",
    "cleanup_does_not_raise": ANY_CLEANUP,
    "handler_does_not_crash_on_malformed_data": "use data or {}, as data may be None",
    "handler_does_not_crash_on_empty_data": "read data with .get(…)",
    # orchestrator
    "orchestrator_has_execute_method": "write 'async def execute(self, prompt, context, "
    "providers, tools, hooks, **kwargs) -> str'",
    "execute_returns_string": "return the text of the provider's last answer",
    "execute_with_empty_prompt": "raise ValueError, or return an answer",
    "orchestrator_uses_provider": "call provider.complete(request) of one of 'providers'",
    "orchestrator_updates_context": "call context.add_message(…) with the prompt and each answer",
    # context
    "context_has_required_methods": "add the methods listed in contracts/context.md",
    "message_round_trip": "store each message unchanged, and return all of them",
    "multiple_messages": "keep the messages in the order they were added",
    "clear_removes_messages": "remove all messages in clear()",
    "get_messages_for_request_returns_messages": "return a list that contains the latest messages",
    "internal_should_compact_returns_bool": "return True or False",
    "internal_compact_does_not_crash": "compaction must handle a short conversation",
    "add_invalid_message_does_not_crash": "raise ValueError for a message without a role, or store it",
    "get_messages_never_returns_none": "return a list, [] if there are no messages",
}
"""Test name of the suite, without `test_` → fix."""

_KERNEL = {
    "protocol_compliance": "if it needs settings, pass them with --config; if it cannot work, "
    "log a warning with the reason and return None",
    "cleanup": ANY_CLEANUP,
}


def for_import(error: BaseException, request: Request) -> str:
    """The fix for an import that failed."""
    name = error.name if isinstance(error, ImportError) else None
    if name:
        missing = isinstance(error, ModuleNotFoundError)
        own = (request.entry_point or request.root.stem).partition(":")[0].partition(".")[0]
        if name.partition(".")[0] == own:
            what = f"the file of {name}" if missing else f"it to {name}"
            return f"add {what}, or fix the import"
        hint = requires_hint(str(error), "its entry in the plan")
        where = f"; if you cannot change the module, {hint}" if hint else ""
        if missing:
            return (
                f"add the package that provides {name} to 'dependencies' in pyproject.toml{where}"
            )
        package = name.partition(".")[0]
        return f"set the required version of {package} in 'dependencies'{where}"
    if isinstance(error, SyntaxError):
        return "fix that line"
    if isinstance(error, SystemExit):
        return "a module must not exit the program when imported"
    return "move code that can fail from the import to mount()"


def for_kernel_check(
    check: ValidationCheck,
    kind: str,
    missing: list[str],
    settings: Sequence[str],
    *,
    configured: bool,
) -> Check:
    """A kernel check with the fix separated from the finding.

    Args:
        check: The check.
        kind: The kind the module is checked as.
        missing: Required settings that are missing in its config.
        settings: All settings that its schema has.
        configured: Whether any config was passed.
    """
    if check.passed:
        return Check(check.name, True, check.message, check.severity)
    # The kernel's messages end with the fix.
    match = re.fullmatch(r"(.+?); (write|expected|mount it with) (.+)", check.message, re.DOTALL)
    message, advice = check.message, _KERNEL.get(check.name)
    if match:
        message = match[1]
        advice = f"{'write' if match[2] == 'expected' else match[2]} {match[3]}"
    if "lacks members of the protocol" in message:
        advice = "add the members listed below"
    elif "(it logged: " in message:
        reason = message.partition("(it logged: ")[2]
        asked = [
            name for name in settings if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reason)
        ]
        if asked and not configured:
            # Without its settings there is nothing to mount, as it says itself.
            advice = f"check what it mounts: {' or '.join(f'--config {name}=…' for name in asked)}"
            return Check(check.name, False, f"{ASKS}{message}", "warning", advice)
        advice = "provide what it asks for, with --config or in the environment"
    elif kind == "provider" and "returned NoneType" in message:
        advice = (
            f"{advice}; if it needs a key, pass one with --config or in the environment, and let it "
            "log a warning when the key is missing"
        )
    elif check.name == "protocol_compliance" and missing:
        advice = "pass the required settings: " + " ".join(f"--config {key}=…" for key in missing)
    elif " raised " in message and configured:
        advice = "fix the --config, or how mount() uses it"
    return Check(check.name, False, message, check.severity, advice)
