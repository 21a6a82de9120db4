"""Go on with a prompt that ended too early, without repeating what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_app.runtime.turns.module_faults import messages_of
from amplifier_app.sessions.recording_context import answer_at_end

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

CONTINUE = "Continue."
"""The prompt that goes on with an unfinished one."""


async def prompt_to_continue(session: OpenSession, prompt: str) -> str:
    """What to send to go on with `prompt`: the prompt itself if the model has not reacted to it."""
    messages = await messages_of(session.session)
    kept = [*messages]
    while _role(kept) == "user" and kept[-1].get("content") in (prompt, CONTINUE):
        del kept[-1]
    unanswered = [message.get("content") for message in messages[len(kept) :]]
    if unanswered:
        await session.context.set_messages(kept)
    if prompt in unanswered:
        return prompt
    # Without the prompt in the conversation, an answer at its end belongs to an earlier one.
    asked = (message.get("content") for message in reversed(kept) if message.get("role") == "user")
    last = next((text for text in asked if text != CONTINUE), None)
    is_known = prompt == CONTINUE or (isinstance(last, str) and last.startswith(prompt))
    begun = _role(kept) == "tool" or (_role(kept) == "assistant" and is_known)
    return CONTINUE if begun else prompt


async def finished_answer(session: OpenSession) -> str | None:
    """The answer to the last prompt, if the model has given it; None if the prompt is unfinished."""
    return answer_at_end(await messages_of(session.session))


def _role(messages: list[Any]) -> str | None:
    return messages[-1].get("role") if messages else None
