"""How a chat begins: what its session continues, and the first prompt or the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amplifier_app.chat.outcome_messages import RETRY, show_unfinished
from amplifier_app.chat.resume_header import conversation_of, resume_header
from amplifier_app.runtime.continuation import last_prompt

if TYPE_CHECKING:
    from amplifier_app.chat.prompt_files import PromptFiles
    from amplifier_app.runtime.observers.observer import Renderer
    from amplifier_app.runtime.session import OpenSession


class Begun(Protocol):
    """What beginning needs of `amplifier_app.chat.conversation.Conversation`."""

    session: OpenSession
    renderer: Renderer
    files: PromptFiles
    last_prompt: str | None
    on_empty_line: str | None

    def retry_key(self) -> str: ...
    def send(self, prompt: str) -> None: ...


async def begin(chat: Begun, prompt: str | None, *, greets: bool) -> None:
    """Show what the session continues, and send a prompt or offer to finish the last one.

    Args:
        chat: The chat.
        prompt: The first prompt; None to wait for it.
        greets: Whether to show what the session continues, and how to get help.

    Raises:
        SessionError: The transcript of the session cannot be read.
    """
    session, renderer = chat.session, chat.renderer
    recorded = await conversation_of(session) if session.facts.resumed else None
    if greets:
        if recorded is not None:
            renderer.reply(await resume_header(session, recorded))
        renderer.notice("/help for commands, Ctrl-D to leave", "info", "chat")
    if prompt is not None:
        chat.send(prompt)
        return
    last = await last_prompt(session, recorded) if recorded is not None else None
    if last is None:
        return
    chat.last_prompt = last.text
    chat.files.keep(last.text)
    if not last.finished:
        chat.on_empty_line = RETRY
        show_unfinished(renderer, chat.retry_key(), begun=last.begun)
