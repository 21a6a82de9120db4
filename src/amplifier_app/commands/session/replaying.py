"""`amplifier session replay`: the logged events of a session reach a renderer again, in their order and at their pace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.stdio import is_dumb
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.commands.typer_options import option
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.render.screen import AnsiScreen
from amplifier_app.render.terminal import TerminalRenderer
from amplifier_app.runtime.export.parts import read_time
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.subscriptions import show_once
from amplifier_app.runtime.observers.visibility import visible_only
from amplifier_app.runtime.turns.turn import Status, TurnResult
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id
from amplifier_app.sessions.tool_calls import CallNumbers
from amplifier_support.named_tuple import NamedTuple

# -- play a logged session again ---------------------------------------------------------


_MAX_PAUSE = 3.0
"""Seconds after which waiting, for example for the next prompt, is cut short."""


_PIECE = 12
"""Characters of an answer that appear at once; its deltas are not in the log by default."""


class Moment(NamedTuple):
    """An event, the seconds to wait before it, and its time in seconds."""

    wait: float
    event: str
    data: dict[str, Any]
    at: float


def moments(events: Sequence[Mapping[str, Any]]) -> Iterator[Moment]:
    """The events with the pauses between them; answers are divided into pieces."""
    streamed = any(event.get("event") == "content_block:delta" for event in events)
    before: float | None = None
    for event in events:
        data = event.get("data")
        at = read_time(event)
        if not isinstance(data, dict) or at is None:
            continue
        name, wait = str(event.get("event")), 0.0 if before is None else max(0.0, at - before)
        before = at if before is None else max(before, at)
        if name == "content_block:end" and not streamed:
            yield from _pieces(cast("dict[str, Any]", data), min(wait, _MAX_PAUSE), at)
            wait = 0.0
        yield Moment(min(wait, _MAX_PAUSE), name, cast("dict[str, Any]", data), at)


def _pieces(data: dict[str, Any], seconds: float, at: float) -> Iterator[Moment]:
    block = data.get("block")
    text = block.get("text") or block.get("thinking") if isinstance(block, dict) else None
    if not isinstance(text, str) or not text:
        return
    pieces = [text[n : n + _PIECE] for n in range(0, len(text), _PIECE)]
    for piece in pieces:
        yield Moment(seconds / len(pieces), "content_block:delta", {**data, "delta": piece}, at)


async def play(events: Sequence[Mapping[str, Any]], renderer: Renderer, speed: float) -> None:
    """Show the events.

    Args:
        events: The log of a session.
        renderer: Shows them.
        speed: How many times as fast as it was; 0 does not wait at all.
    """
    recorder = TurnRecorder()
    recording = recorder.handlers()
    showing = visible_only(show_once(renderer.handlers()), renderer.visibility)
    response, running, began, now = "", False, 0.0, 0.0

    def result(status: Status | None = None) -> TurnResult:
        return recorder.result(response, status)._replace(seconds=now - began)

    for wait, event, data, now in moments(events):
        if speed and wait:
            await asyncio.sleep(wait / speed)
        if event == "prompt:submit":
            if running:
                renderer.turn_ended(result("cancelled"))
            began = now
            renderer.message_sent(str(data.get("prompt") or ""))
            recorder.begin()
            renderer.turn_started()
            response, running = "", True
        if event == "prompt:complete":
            response = str(data.get("response") or "")
        for handlers in (recording, showing) if running else ():
            if event in handlers:
                handlers[event](event, data)
        if event == "orchestrator:complete" and running:
            renderer.turn_ended(result())
            running = False
    if running:
        renderer.turn_ended(result("cancelled"))


# -- amplifier session replay ------------------------------------------------------------


def replay(
    context: typer.Context,
    session_id: SessionArgument,
    speed: Annotated[
        float, option("--speed N", "N times as fast as it was; 0 does not wait.")
    ] = 1.0,
    plain: Annotated[bool, option("--plain", "Plain output: no colours, no redrawing.")] = False,
) -> None:
    """Show a session as it ran, from the log that hooks-logging wrote.

    \b
      amplifier session replay 1a2b3c --speed 4

    No model is asked and no tool runs. Pauses of more than 3 s are cut short.
    """
    if not 0 <= speed < float("inf"):
        raise UsageError(f"--speed: expected a number from 0 (got {speed:g})")
    session = SessionStore().find(session_id)
    events = list(session.events())
    if not any(event.get("event") == "prompt:submit" for event in events):
        raise SessionError(
            f"session {session.id} has no log of what happened",
            hint=f"Its plan has no hooks-logging. The conversation: amplifier session show {short_id(session.id)}",
        )
    output = context.obj.stdout
    renderer: Renderer
    if plain or not os.isatty(1) or is_dumb():
        renderer = PlainRenderer(output)
    else:
        renderer = TerminalRenderer(AnsiScreen(output))
        hint = f"amplifier session show {short_id(session.id)} --call N shows a whole result"
        renderer.full_result_hint = hint
    numbers = CallNumbers(session.records())
    renderer.call_number = numbers.of
    try:
        run_loop(play(events, renderer, speed))
    finally:
        renderer.close()
