"""A chat: its terminal is ready before the session is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Outcome, to_outcome
from amplifier_app.base.signals import hold_signals, signal_behind
from amplifier_app.base.slow_steps import show_slow_steps
from amplifier_app.base.stdio import Output
from amplifier_app.chat.application import ChatApplication, project_history
from amplifier_app.chat.slash.registry import Reopen, ToBackground
from amplifier_app.chat.terminal import PlainTerminal
from amplifier_app.chat.terminal_modes import KeyMode
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose, with_fork
from amplifier_app.commands.run.request import Request
from amplifier_app.render.theme import use_theme
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.observers.observer import Renderer

if TYPE_CHECKING:
    from amplifier_app.runtime.attachments import AttachedImage


_NOTICE_SECONDS = 1.0
"""Seconds in which a notice is shown unless a module blocks the event loop."""


def run_chat(request: Request, invocation: Invocation, chosen: Chosen, opening: Opening) -> Outcome:
    """Run a chat until the user leaves, in one session after another.

    A session that cannot be opened from within the chat leaves the user in the one before.

    Raises:
        AppError: The first session cannot be opened, or the one before cannot be opened again.
    """
    part = _Part(request)
    back: Request | None = None
    while True:
        try:
            choice = chosen
            if part.request is not request:
                choice = with_fork(part.request, choose(part.request, invocation.stdout))
            with _terminal(part, choice, invocation.stdout) as terminal:
                return run_loop(_chat(part, invocation, choice, terminal, opening))
        except ToBackground as leaving:
            from amplifier_app.commands.run.detached import go_on

            return go_on(_with_changes(part.request, leaving.changes), leaving.prompt)
        except Reopen as reopen:
            back = None if reopen.back is None else _with_changes(part.request, reopen.back)
            part = _Part(_with_changes(part.request, reopen.changes), reopen.greets)
            # The time limit of the run was for its first session.
            opening.deadline = None
        # Modules of the session may raise anything.
        except Exception as error:
            if back is None or part.is_open or signal_behind(error) is not error:
                raise
            part, back = _Part(back, greets=False, failure=to_outcome(error)), None


class _Part:
    """The part of a chat that is in one session.

    Attributes:
        request: What the session is opened with.
        greets: Whether to show what the session continues.
        failure: Why the chat is still in this session.
        is_open: Whether the session has been opened.
        renderer: Shows it; None before there is one.
    """

    def __init__(
        self, request: Request, greets: bool = True, failure: Outcome | None = None
    ) -> None:
        self.request = request
        self.greets = greets
        self.failure = failure
        self.is_open = False
        self.renderer: Renderer | None = None


def _with_changes(request: Request, changes: Mapping[str, Any]) -> Request:
    """The request of another session of the chat."""
    other = dict.fromkeys(("session", "resume", "fork", "prompt", "module_mode", "attach"))
    return request._replace(continue_last=False)._replace(**{**other, **changes})


@contextlib.contextmanager
def _terminal(
    part: _Part, chosen: Chosen, stdout: Output
) -> Generator[ChatApplication | PlainTerminal]:
    display = chosen.plan.display
    if not part.request.draws(display):
        yield PlainTerminal(stdout)
        return
    asks_background = use_theme(display.get("theme", "auto"))
    with KeyMode(0) as keys:
        history, failure = project_history(os.getcwd())
        terminal = ChatApplication(
            stdout,
            history=history,
            keys=keys,
            vi=display.get("keys") == "vi",
            asks_background=asks_background,
        )
        if failure:
            terminal.commit(f"! prompt history is unavailable: {failure}\n")
        try:
            yield terminal
        finally:
            # More signals may have ended the event loop before everything was closed.
            with hold_signals():
                terminal.restore()
                if part.renderer is not None:
                    part.renderer.close()
                keys.restore()


def _attached(request: Request) -> tuple[str | None, Sequence[AttachedImage]]:
    """The first prompt of a chat with its text files, and its images.

    Raises:
        UsageError: A file cannot be attached, or there is no prompt for a text file.
    """
    if not request.attach:
        return request.prompt, ()
    from amplifier_app.runtime.attachments import read_attachments

    attached = read_attachments([Path(file) for file in request.attach])
    if request.prompt is not None:
        return attached.add_to(request.prompt), attached.images
    if attached.texts:
        raise UsageError("--attach: a text file needs a prompt; an image waits for the first one")
    return None, attached.images


def _find_obstacle(request: Request) -> str | None:
    """Why a prompt of a chat cannot go on in the background; None if it can."""
    if request.record is not None or request.replay is not None:
        return "--record and --replay need this process"
    from amplifier_app.commands.run import detached

    return detached.find_obstacle()


def _notices_from_thread(renderer: Renderer) -> Callable[[str], bool]:
    """Return what shows a notice from another thread; it returns False if the event loop is busy."""
    loop = asyncio.get_running_loop()

    def show(text: str) -> bool:
        # A notice that is too late has been shown in another way.
        taken, shown = threading.Lock(), threading.Event()

        def notice() -> None:
            if taken.acquire(blocking=False):
                renderer.notice(text, "info", "session")
                shown.set()

        try:
            loop.call_soon_threadsafe(notice)
        except RuntimeError:  # the loop has ended
            return False
        return shown.wait(_NOTICE_SECONDS) or not taken.acquire(blocking=False)

    return show


async def _chat(
    part: _Part,
    invocation: Invocation,
    chosen: Chosen,
    terminal: ChatApplication | PlainTerminal,
    opening: Opening,
) -> Outcome:
    request = part.request
    prompt, images = _attached(request)
    async with terminal:
        # After the input line is painted: it brings most of the chat.
        from amplifier_app.chat.conversation import chat, show_outcome
        from amplifier_app.commands.run.opening import (
            approvals_for,
            choose_renderer,
            open_requested_session,
        )
        from amplifier_app.runtime.continuation import reopening_options

        screen = terminal if isinstance(terminal, ChatApplication) else None
        renderer = choose_renderer(request, invocation, chosen.plan.display, screen=screen)
        part.renderer = renderer
        if screen is not None:
            show_slow_steps(_notices_from_thread(renderer))
        renderer.while_paused = terminal.suspended
        renderer.typing_paused = terminal.typing_paused
        approvals = approvals_for(request, renderer, invocation.stdout, is_plain=screen is None)
        async with open_requested_session(
            request, invocation, chosen, renderer, approvals, opening
        ) as session:
            part.is_open = True
            if approvals.is_interactive:
                session.ask_at_limits()
            session.attach(images)
            if part.failure is not None:
                show_outcome(renderer, part.failure, "error")
            try:
                return await chat(
                    session,
                    renderer,
                    terminal,
                    invocation.stdout,
                    prompt=prompt,
                    greets=part.greets,
                    find_obstacle=lambda: _find_obstacle(request),
                )
            except Reopen as reopen:
                reopen.back = reopening_options(session)
                raise
            except ToBackground as leaving:
                policy = "park" if approvals.policy == "ask" else approvals.policy
                leaving.changes = {**(reopening_options(session) or {}), "approve": policy}
                raise
