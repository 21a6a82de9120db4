"""Events that are told as notices, the same words wherever they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_app.runtime import describe
from amplifier_app.runtime.observer import Level, Renderer
from amplifier_app.runtime.turn import EventHandler, peek

_NOTICES: dict[str, tuple[Callable[[dict[str, Any], int], str], Level, str]] = {
    "provider:retry": (describe.retry_text, "warning", "provider"),
    "provider:fallback": (describe.fallback_text, "warning", "provider"),
    "context:overflow": (describe.overflow_text, "warning", "context"),
    "step:start": (describe.step_text, "info", "loop"),
    "context:post_compact": (describe.compaction_text, "info", "context"),
}
"""Text, level and source by event; no text is nothing to tell."""


def notice_handlers(renderer: Renderer) -> dict[str, EventHandler]:
    """Handlers that tell these events, and what modules notify of, through `renderer.notice`."""

    def tell(event: str, data: dict[str, Any]) -> None:
        describing, level, source = _NOTICES[event]
        if event == "provider:retry" and not renderer.retries.is_new_event(data):
            return
        text = describing(data, renderer.longest_note)
        if text:
            renderer.notice(text, level, source)

    def notify(event: str, data: dict[str, Any]) -> None:
        level = peek(data, "level")
        text = describe.notification_text(data)
        if text:
            renderer.notice(text, level if level in ("warning", "error") else "info", "module")

    return {**dict.fromkeys(_NOTICES, tell), "user:notification": notify}
