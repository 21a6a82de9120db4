"""`amplifier resume`: choose a session and continue it in a chat."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import is_dumb, read_line, stdin_is_tty, to_stderr
from amplifier_app.chat.picker import SessionPicker, list_sessions, pick
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.launch import launch
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.runtime import describe
from amplifier_app.sessions.store import SessionStore

_PATIENCE_SECONDS = 600.0
_LISTED = 20


def resume(
    context: typer.Context,
    session_id: Annotated[
        str | None, argument("ID", "Session id. [default: choose from a list]")
    ] = None,
    everywhere: Annotated[
        bool, option("-a, --all", "List the sessions of all directories.")
    ] = False,
    plain: Annotated[bool, option("--plain", "Plain output: no colours, no redrawing.")] = False,
) -> None:
    """Continue a saved session in a chat.

    \b
      amplifier resume
      amplifier resume 1a2b3c

    Without an ID, lists the sessions of this directory: type to filter, Enter resumes.
    """
    if not stdin_is_tty() or not os.isatty(1):
        raise UsageError(
            "cannot resume in a chat without a terminal",
            hint='Send one prompt: amplifier run --resume ID "…"\n'
            "List the sessions: amplifier session list",
        )
    request = Request(resume=session_id, screen="plain" if plain else None)
    if session_id is None:
        chosen = _choose(everywhere=everywhere, plain=plain)
        if chosen is None:
            return
        request = request._replace(**chosen)
    else:
        request = request._replace(resume=SessionStore().find(session_id).id)
    invocation: Invocation = context.obj
    invocation.outcome = launch(request, invocation)


def _choose(*, everywhere: bool, plain: bool) -> dict[str, str] | None:
    if not list_sessions(everywhere=everywhere):
        hint = "" if everywhere else " Those of other directories: amplifier resume --all"
        to_stderr(f"No saved sessions{'' if everywhere else ' in this directory'}.{hint}")
        return None
    if plain or is_dumb():
        return _choose_by_number(everywhere=everywhere)
    choice = run_loop(pick(SessionPicker(everywhere=everywhere)))
    return None if choice is None else {choice.action: choice.session_id}


def _choose_by_number(*, everywhere: bool) -> dict[str, str] | None:
    listed = list_sessions(everywhere=everywhere)[:_LISTED]
    for number, (session, _) in enumerate(listed, 1):
        print(f"{number:>3}  {describe.age(session.updated):<11}  {one_line(session.about)}")
    print(f"Resume which one? [1-{len(listed)}, Enter for none] ", end="", flush=True)
    answer = (read_line(_PATIENCE_SECONDS) or "").strip()
    if not answer:
        return None
    if not answer.isdecimal() or not 1 <= int(answer) <= len(listed):
        raise UsageError(f"expected a number from 1 to {len(listed)}, got {answer!r}")
    return {"resume": listed[int(answer) - 1].session.id}
