"""Events that are shown as notices, with the same text in every renderer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.describe import error_text, tokens
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.turns.event_data import EventHandler, peek


def retry_text(data: dict[str, Any], limit: int) -> str:
    """Describe a provider's retry in one line; the cause is cut to `limit` characters."""
    provider = one_line(str(peek(data, "provider") or "provider"), 60)
    attempt, attempts = peek(data, "attempt"), peek(data, "max_retries")
    delay = peek(data, "delay")
    cause = str(peek(data, "error_message") or peek(data, "error_type") or "request failed")
    about = one_line(cause, limit)
    if not about.lower().startswith(provider.lower()):
        about = f"{provider}: {about}"
    wait = f" in {round(delay, 1):g} s" if isinstance(delay, (int, float)) else ""
    known = attempt is not None and attempts is not None
    count = f", attempt {attempt} of {attempts}" if known else ""
    return f"{about}; retrying{wait}{count}"


def fallback_text(data: dict[str, Any], limit: int) -> str:
    """Describe a switch to another provider in one line; the cause is cut to `limit` characters."""
    name, instead = (
        one_line(str(peek(data, key) or "another provider"), 60) for key in ("provider", "fallback")
    )
    return f"{name} is not available: {error_text(data, limit)}; using {instead} instead"


def overflow_text(data: dict[str, Any], limit: int) -> str:
    """Describe a request that was too long in one line."""
    before, after = peek(data, "before_tokens"), peek(data, "after_tokens")
    model = one_line(str(peek(data, "model") or peek(data, "provider") or "the model"), 60)
    if isinstance(before, int) and isinstance(after, int):
        sizes = f"about {tokens(before)} → {tokens(after)} tokens"
        return (
            f"the conversation is too long for {model}; retrying once with a shorter one ({sizes})"
        )
    return f"the conversation is too long for {model} and cannot be shortened"


def notification_text(data: dict[str, Any]) -> str:
    """Return the message of a `user:notification` event."""
    return str(peek(data, "message") or peek(data, "text") or "")


def compaction_text(data: dict[str, Any], limit: int) -> str:
    """Describe a compaction in one line; empty if it changed nothing."""
    before, after = peek(data, "before_tokens"), peek(data, "after_tokens")
    if isinstance(before, int) and isinstance(after, int):
        if after >= before:
            return ""
        return f"context compacted: {tokens(before)} → {tokens(after)} tokens"
    return "context compacted"


def step_text(data: dict[str, Any], limit: int) -> str:
    """Name the step that begins; empty if there is only one step."""
    step, count = peek(data, "step"), peek(data, "count")
    if not isinstance(count, int) or count < 2:
        return ""
    return f"step: {one_line(str(peek(step, 'name') or ''), limit)}"


_NOTICES: dict[str, tuple[Callable[[dict[str, Any], int], str], Level, str]] = {
    "provider:retry": (retry_text, "warning", "provider"),
    "provider:fallback": (fallback_text, "warning", "provider"),
    "context:overflow": (overflow_text, "warning", "context"),
    "step:start": (step_text, "info", "loop"),
    "context:post_compact": (compaction_text, "info", "context"),
}
"""Text, level and source by event; an empty text shows nothing."""


def notice_handlers(renderer: Renderer) -> dict[str, EventHandler]:
    """Return handlers that show these events and module notifications with `renderer.notice`."""

    def show(event: str, data: dict[str, Any]) -> None:
        describe, level, source = _NOTICES[event]
        if event == "provider:retry" and not renderer.retries.is_new_event(data):
            return
        text = describe(data, renderer.longest_note)
        if text:
            renderer.notice(text, level, source)

    def notify(event: str, data: dict[str, Any]) -> None:
        level = peek(data, "level")
        text = notification_text(data)
        if text:
            renderer.notice(text, level if level in ("warning", "error") else "info", "module")

    return {**dict.fromkeys(_NOTICES, show), "user:notification": notify}
