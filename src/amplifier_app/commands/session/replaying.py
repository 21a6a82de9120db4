"""`amplifier session replay`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.stdio import is_dumb
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.render.playback import play
from amplifier_app.render.screen import AnsiScreen
from amplifier_app.render.terminal import TerminalRenderer
from amplifier_app.runtime.event_log import read_events
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id
from amplifier_app.sessions.tool_calls import CallNumbers

replay_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@replay_app.command()
def replay(
    context: typer.Context,
    session_id: SessionArgument,
    speed: Annotated[
        float,
        typer.Option("--speed", metavar="N", help="N times as fast as it was; 0 does not wait."),
    ] = 1.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Plain output: no colours, no redrawing.")
    ] = False,
) -> None:
    """Show a session as it ran, from the log that hooks-logging wrote.

    \b
      amplifier session replay 1a2b3c --speed 4

    No model is asked and no tool runs. Pauses of more than 3 s are cut short.
    """
    if not 0 <= speed < float("inf"):
        raise UsageError(f"--speed must not be negative (got {speed:g})")
    session = SessionStore().find(session_id)
    events = list(read_events(session.path))
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
