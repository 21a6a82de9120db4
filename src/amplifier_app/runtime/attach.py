"""What shows and what counts a session, on the events of its coordinator."""

from __future__ import annotations

from typing import Any

from amplifier_app.runtime.observer import BEFORE_EVENTS, FIRST, LAST, Renderer
from amplifier_app.runtime.once import shown_once
from amplifier_app.runtime.turn import EventHandler, TurnRecorder
from amplifier_app.runtime.visibility import visible_only


def attach(coordinator: Any, renderer: Renderer, recorder: TurnRecorder) -> None:
    """Have both told of the events of a session."""
    hooks = coordinator.hooks
    for event, handler in recorder.handlers().items():
        # What it keeps of an error is shown; of other events it keeps names and numbers.
        handler = redacting(coordinator, handler) if event == "tool:error" else handler
        hooks.register(event, handler, FIRST, name="app-recorder")
    shown = visible_only(shown_once(renderer.handlers()), renderer.visibility)
    for event, handler in shown.items():
        priority = FIRST if event in BEFORE_EVENTS else LAST
        hooks.register(event, redacting(coordinator, handler), priority, name="app-renderer")


def redacting(coordinator: Any, handler: EventHandler) -> EventHandler:
    """`handler`, told of events as the session's redaction, if it has one, lets them be shown.

    Some events no hook may redact: a tool or the model needs what they carry.
    """
    capability = coordinator.get_capability

    def shown(event: str, data: dict[str, Any]) -> None:
        redact = capability("redaction.event")
        handler(event, data if redact is None else redact(event, data))

    return shown


def showable(coordinator: Any, text: str) -> str:
    """A text as the session's redaction, if it has one, lets it be shown."""
    redact = coordinator.get_capability("redaction.event")
    return text if redact is None else redact("prompt:submit", {"prompt": text})["prompt"]
