"""Short words for tool calls, durations and amounts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.turn import peek

_TELLING = ("command", "file_path", "path", "pattern", "query", "url", "name", "prompt", "task")
"""Input fields that say what a call is about, most telling first."""


def tool_name(data: dict[str, Any]) -> str:
    """Name of the tool a tool event is about, safe for one line of a terminal."""
    return one_line(str(peek(data, "tool_name") or "tool"), 60)


def tool_input(data: dict[str, Any], limit: int = 100) -> str:
    """What a tool call is about: its most telling field, else its input as compact JSON."""
    value = peek(data, "tool_input")
    if value is None:
        value = peek(data, "input")
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if isinstance(fields.get("instruction"), str):
            return one_line(task(fields.get("agent"), fields["instruction"]), limit)
        for key in _TELLING:
            if isinstance(fields.get(key), str) and fields[key]:
                return one_line(fields[key], limit)
        value = json.dumps(fields, default=str, ensure_ascii=False) if fields else ""
    return one_line(str(value or ""), limit)


def task(agent: Any, instruction: str) -> str:
    """What a sub-agent is to do: `reviewer: Look at the diff`."""
    return f"{agent}: {instruction}" if isinstance(agent, str) and agent else instruction


def result_text(data: dict[str, Any]) -> str:
    """A tool's result as text, not yet cleaned."""
    result = peek(data, "tool_result")
    if result is None:
        result = peek(data, "result")
    said = _said_by_agent(getattr(result, "output", None))
    if said is not None:
        return said
    serialized = getattr(result, "get_serialized_output", None)
    if callable(serialized):
        return str(serialized())
    if isinstance(result, Mapping):
        fields = cast("Mapping[str, Any]", result)
        result = fields.get("output") or fields.get("error") or ""
    return "" if result is None else str(result)


def _said_by_agent(output: Any) -> str | None:
    """The answer of a sub-agent, without what is meant for the model that asked it."""
    if not isinstance(output, Mapping) or "session_id" not in output:
        return None
    response = cast("Mapping[str, Any]", output).get("response")
    return response if isinstance(response, str) else None


def block_text(data: dict[str, Any]) -> str:
    """The text of a finished text or thinking block."""
    block = peek(data, "block")
    for name in ("text", "thinking"):
        found = block.get(name) if isinstance(block, Mapping) else getattr(block, name, None)
        if isinstance(found, str):
            return found
    return ""


def error_text(data: dict[str, Any], limit: int = 200) -> str:
    """The message of an error event, at most `limit` characters of it."""
    error = peek(data, "error")
    if isinstance(error, Mapping):
        error = cast("Mapping[str, Any]", error).get("message") or error
    return one_line(str(error or "failed"), limit)


def duration(seconds: float) -> str:
    """`0.3 s`, `12 s`, `2 min 5 s`."""
    if seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def tokens(count: int) -> str:
    """`950`, `12.3k`, `1.2M`."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def cost(dollars: Decimal) -> str:
    """`$0.0123`: four digits below a dollar, two above."""
    return f"${dollars:.4f}" if dollars < 1 else f"${dollars:.2f}"


def retry_text(data: dict[str, Any], limit: int) -> str:
    """One line about a provider's retry; at most `limit` characters of why."""
    provider = one_line(str(peek(data, "provider") or "the provider"), 60)
    attempt, most = peek(data, "attempt"), peek(data, "max_retries")
    delay = peek(data, "delay")
    cause = str(peek(data, "error_message") or peek(data, "error_type") or "it failed")
    wait = f" in {delay:.1f} s" if isinstance(delay, (int, float)) else ""
    count = f" ({attempt}/{most})" if attempt is not None and most is not None else ""
    return f"{provider}: {one_line(cause, limit)}; trying again{wait}{count}"


def fallback_text(data: dict[str, Any], limit: int) -> str:
    """One line about another provider that is asked instead; at most `limit` characters of why."""
    name, instead = (
        one_line(str(peek(data, key) or "another provider"), 60) for key in ("provider", "fallback")
    )
    return f"{name} is not available: {error_text(data, limit)}; asking {instead} instead"


def overflow_text(data: dict[str, Any], limit: int) -> str:
    """One line about a request that was too long."""
    before, after = peek(data, "before_tokens"), peek(data, "after_tokens")
    model = one_line(str(peek(data, "model") or peek(data, "provider") or "the model"), 60)
    if isinstance(before, int) and isinstance(after, int):
        sizes = f"about {tokens(before)} → {tokens(after)} tokens"
        return f"the conversation is too long for {model}; trying once with less of it ({sizes})"
    return f"the conversation is too long for {model} and cannot be made shorter"


def notification_text(data: dict[str, Any]) -> str:
    """The message of a `user:notification` event."""
    return str(peek(data, "message") or peek(data, "text") or "")


def compaction_text(data: dict[str, Any], limit: int) -> str:
    """One line about a context that was compacted."""
    before, after = peek(data, "before_tokens"), peek(data, "after_tokens")
    if isinstance(before, int) and isinstance(after, int):
        return f"context compacted: {tokens(before)} → {tokens(after)} tokens"
    return "context compacted"


def step_text(data: dict[str, Any], limit: int) -> str:
    """Which step of several begins; empty if there is only one."""
    step, count = peek(data, "step"), peek(data, "count")
    if not isinstance(count, int) or count < 2:
        return ""
    return f"step: {one_line(str(peek(step, 'name') or ''), limit)}"
