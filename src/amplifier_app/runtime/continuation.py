"""Go on with a prompt that ended too early, without repeating what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_app.runtime.turns.module_faults import read_messages
from amplifier_app.sessions.conversation import Conversation
from amplifier_app.sessions.recording_context import answer_at_end
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_ANSWERING = ("assistant", "tool")

CONTINUE = "Continue."
"""The prompt that goes on with an unfinished one."""


async def prompt_to_continue(session: OpenSession, prompt: str) -> str:
    """Return the prompt to go on with `prompt`: the prompt itself if the model has not reacted to
    it.
    """
    messages = await read_messages(session.session)
    steered = session.steering.sent
    answered = [*messages]
    while _role(answered) == "user" and _content(answered[-1]) in (prompt, CONTINUE, *steered):
        del answered[-1]
    unanswered = messages[len(answered) :]
    # Messages to the turn.
    kept = [message for message in unanswered if _content(message) not in (prompt, CONTINUE)]
    is_unanswered = prompt in map(_content, unanswered)
    if len(kept) < len(unanswered):
        await session.context.set_messages(answered if is_unanswered else [*answered, *kept])
    if is_unanswered:
        session.steering.following = [*map(_content, kept)]
        return prompt
    # Without the prompt in the conversation, an answer at its end belongs to an earlier one.
    asked = (_content(message) for message in reversed(answered) if message.get("role") == "user")
    last = next((text for text in asked if text not in (CONTINUE, *steered)), None)
    is_known = prompt == CONTINUE or (isinstance(last, str) and last.startswith(prompt))
    begun = _role(answered) == "tool" or (_role(answered) == "assistant" and is_known)
    return CONTINUE if begun else prompt


class LastPrompt(NamedTuple):
    """The last prompt of a conversation.

    Attributes:
        text: As the model has it.
        begun: Whether the model has begun to answer it.
        finished: Whether the conversation ends with an answer.
    """

    text: str
    begun: bool
    finished: bool


async def last_prompt(session: OpenSession, recorded: Conversation) -> LastPrompt | None:
    """The last prompt of a session; None if it is not in the context, as after it was cleared.

    Args:
        session: The session, without a running turn.
        recorded: What its transcript records.
    """
    prompts = recorded.prompts
    if not prompts:
        return None
    text = prompts[-1].text
    after: list[dict[str, Any]] = []  # the last first
    for message in reversed(await read_messages(session.session)):
        if message.get("role") == "user" and _content(message) == text:
            begun = any(one.get("role") in _ANSWERING for one in after)
            return LastPrompt(text, begun, answer_at_end(after[:1]) is not None)
        after.append(message)
    return None


async def finished_answer(session: OpenSession) -> str | None:
    """The answer to the last prompt, if the model has given it; None if the prompt is unfinished."""
    return answer_at_end(await read_messages(session.session))


def _content(message: dict[str, Any]) -> Any:
    return message.get("content")


def _role(messages: list[Any]) -> str | None:
    return messages[-1].get("role") if messages else None
