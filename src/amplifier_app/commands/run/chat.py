"""A chat: its terminal is ready before the session is open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from amplifier_app.base.outcome import Outcome
from amplifier_app.base.stdio import Output
from amplifier_app.chat.application import ChatApplication
from amplifier_app.chat.history import project_history
from amplifier_app.chat.plain_terminal import PlainTerminal
from amplifier_app.chat.slash.registry import Reopen
from amplifier_app.chat.terminal_modes import KeyMode
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.run.screen_mode import draws
from amplifier_app.runtime.opening import Opening


def run_chat(request: Request, invocation: Invocation, chosen: Chosen, opening: Opening) -> Outcome:
    """Run a chat until the user leaves, in one session after another.

    Raises:
        AppError: The session cannot be opened.
    """
    greets = True
    while True:
        try:
            with _terminal(request, chosen, invocation.stdout) as terminal:
                return run_loop(_chat(request, invocation, chosen, terminal, opening, greets))
        except Reopen as reopen:
            greets = reopen.greets
            other = dict.fromkeys(("session", "resume", "fork", "prompt"))
            request = request._replace(continue_last=False)
            request = request._replace(**{**other, **reopen.changes})
            chosen = choose(request, invocation.stdout)


@contextlib.contextmanager
def _terminal(
    request: Request, chosen: Chosen, stdout: Output
) -> Generator[ChatApplication | PlainTerminal]:
    if not draws(request, chosen.plan.display):
        yield PlainTerminal(stdout)
        return
    with KeyMode(0) as keys:
        history, failure = project_history(os.getcwd())
        terminal = ChatApplication(
            stdout,
            history=history,
            keys=keys,
            vi=chosen.plan.display.get("keys") == "vi",
        )
        if failure:
            terminal.commit(f"! prompt history is unavailable: {failure}\n")
        yield terminal


async def _chat(
    request: Request,
    invocation: Invocation,
    chosen: Chosen,
    terminal: ChatApplication | PlainTerminal,
    opening: Opening,
    greets: bool,
) -> Outcome:
    async with terminal:
        # After the input line is painted: it brings most of the chat.
        from amplifier_app.chat.conversation import chat
        from amplifier_app.commands.run.opening import approvals_for, choose_renderer, opened

        screen = terminal if isinstance(terminal, ChatApplication) else None
        renderer = choose_renderer(request, invocation, chosen.plan.display, screen=screen)
        renderer.while_paused = terminal.suspended
        renderer.typing_paused = terminal.typing_paused
        approvals = approvals_for(request, renderer, invocation.stdout, is_plain=screen is None)
        async with opened(request, invocation, chosen, renderer, approvals, opening) as session:
            if approvals.is_interactive:
                session.ask_at_limits()
            return await chat(
                session,
                renderer,
                terminal,
                invocation.stdout,
                prompt=request.prompt,
                greets=greets,
            )
