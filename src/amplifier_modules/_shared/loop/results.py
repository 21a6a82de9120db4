"""The result of a tool as a `ToolResult` and as the message the model reads."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, cast

from pydantic import ValidationError

from amplifier_core._foreign import blame, where_defined
from amplifier_core.hooks import plain
from amplifier_core.models import ToolResult

logger = logging.getLogger(__name__)

RESULT_KEYS = frozenset({"success", "output", "error", "content", "is_error"})


def find_fault(value: Any) -> str | None:
    """Describe why a tool's return value is not a result; None if it is one."""
    if value is None or _is_code(value):
        return f"{_named(value)}, expected a ToolResult"
    if isinstance(value, ToolResult) and _is_code(value.output):
        return f"a ToolResult whose output is {_named(value.output)}, expected text or JSON data"
    return None


def _is_code(value: Any) -> bool:
    """Return True if a value is still to be computed, as by a missing `await` or `list(…)`."""
    return isinstance(value, (Awaitable, Iterator, AsyncIterator, FunctionType, MethodType))


def _named(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def wrong_answer(
    kind: str, name: str | None, obj: Any, call: str, value: Any, expected: str
) -> TypeError:
    """The error of a module, blamed for it, whose method returned a value of another type."""
    where = where_defined(getattr(obj, call, obj))
    fault = f"{call}() returned {_named(value)}, expected {expected} ({where})"
    error = TypeError(fault if name is None else f"{kind} '{name}': {fault}")
    blame(error, kind=kind, name=name, obj=obj, fault=fault)
    return error


def as_result(value: Any) -> ToolResult:
    """Convert the return value of a tool or a hook to a `ToolResult`.

    A mapping with only the fields of a result is read as one; any other value is the output of a
    successful tool.
    """
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, Mapping):
        fields = dict(cast("Mapping[str, Any]", value))
        if ("success" in fields or "is_error" in fields) and fields.keys() <= RESULT_KEYS:
            return ToolResult.model_validate(_with_error_object(fields))
        return ToolResult(output=fields)
    return ToolResult(output=value)


def _with_error_object(fields: dict[str, Any]) -> dict[str, Any]:
    error = fields.get("error")
    return {**fields, "error": {"message": error}} if isinstance(error, str) else fields


def apply_hook_changes(result: ToolResult, original: Mapping[str, Any], changed: Any) -> ToolResult:
    """A result after hooks.

    Args:
        result: The tool's result.
        original: The same result as passed to hooks.
        changed: Their replacement: a `ToolResult`, some of a result's fields, or an output.
    """
    if not isinstance(changed, Mapping):
        return as_result(changed)
    fields = dict(cast("Mapping[str, Any]", changed))
    if not fields or not fields.keys() <= RESULT_KEYS:
        return as_result(fields)
    if "is_error" in fields:
        fields.setdefault("success", not fields.pop("is_error"))
    # Only changed fields: hooks see text in place of values that JSON cannot represent.
    changes = {key: value for key, value in fields.items() if original.get(key) != value}
    if "output" in changes and "content" not in changes and result.content:
        # Text in the content repeats the output that was changed.
        changes["content"] = [block for block in result.content if block.type != "text"]
    try:
        return ToolResult.model_validate({**result.__dict__, **_with_error_object(changes)})
    except ValidationError as error:
        warn_of_ignored("tool result", "tool:post", error)
        return result


def warn_of_ignored(what: str, event: str, error: ValidationError) -> None:
    """Log that what a hook made of something is not valid."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, problem["loc"]))
    logger.warning(
        "Ignored a %s changed by a hook on %s: %s: %s", what, event, where, problem["msg"]
    )


def failure(message: str, kind: str = "ToolError") -> ToolResult:
    """A failed result with a message for the model."""
    return ToolResult(success=False, error={"message": message, "type": kind})


def duplicate_result(earlier: ToolResult | None) -> ToolResult:
    """The result of a call that is not run because it duplicates an earlier one."""
    if earlier is None:
        return failure("not run again: this call was made before and its result is unknown")
    note = "(Not run again: this call was made before. Its result was:)"
    return ToolResult(success=earlier.success, output=f"{note}\n{_text(earlier)}")


def result_message(call_id: str, name: str, result: ToolResult) -> dict[str, Any]:
    """The message that answers a tool call in a context.

    Its content is text, or a list of text and image blocks if the result has such content. A
    failure has ``is_error``, for vendors with a flag for it.
    """
    message: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": call_id,
        "name": name,
        "content": _content(result),
    }
    if not result.success:
        message["is_error"] = True
    return message


def _content(result: ToolResult) -> str | list[dict[str, Any]]:
    blocks: list[dict[str, Any]] | None = result.model_dump().get("content")
    if not blocks:
        return _text(result)
    if result.output is not None and all(block["type"] != "text" for block in blocks):
        return [{"type": "text", "text": _text(result)}, *blocks]
    return blocks


def _text(result: ToolResult) -> str:
    try:
        text = result.get_serialized_output()
    except (TypeError, ValueError):
        # An output with parts that JSON cannot represent; the model gets their text.
        try:
            output = json.dumps(result.output, default=str)
        except (TypeError, ValueError):
            output = repr(result.output)
        text = ToolResult(output=output).get_serialized_output()
    except RecursionError:
        text = ToolResult(output=plain(result.output)).get_serialized_output()
    if not result.success and result.error and text == result.error.get("message"):
        return f"Error: {text}"
    return text
