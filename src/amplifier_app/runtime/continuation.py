"""Go on with a session: opened again, or with a prompt that ended too early, without repeating what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_app.runtime.approvals import current_mode, policy_other_than_asking
from amplifier_app.runtime.module_modes import active_module_mode
from amplifier_app.runtime.turns.module_faults import read_messages
from amplifier_app.sessions.conversation import CONTINUE, Conversation, goes_on
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.recording_context import answer_at_end
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_ANSWERING = ("assistant", "tool")


async def build_conversation(session: OpenSession) -> Conversation:
    """The whole conversation of an open session.

    Raises:
        SessionError: Its transcript cannot be read.
    """
    if session.saved is None:
        return Conversation(await session.context.get_messages())
    return SessionFolder(session.saved.path).conversation()


_IN_SAVED_PLAN = ("plan", "profile", "sets", "max_steps")
"""Options that are part of the saved plan of a new session."""


def reopening_options(session: OpenSession) -> dict[str, Any] | None:
    """Fields of the request that differ when the session is opened again as it is now.

    Returns:
        None if it has a conversation that is not saved.
    """
    coordinator = session.session.coordinator
    modes = {
        "mode": current_mode(coordinator),
        "module_mode": active_module_mode(coordinator),
        "approve": policy_other_than_asking(coordinator),
    }
    if not session.is_saved:
        return modes if session.recorder.context_tokens is None else None
    options: dict[str, Any] = {} if session.facts.resumed else dict.fromkeys(_IN_SAVED_PLAN)
    # As they are now: the user may have raised a limit or changed a mode.
    options |= {name: session.budget.limits.get(name) for name in ("max_cost", "max_tokens")}
    return {"resume": session.id, **options, **modes}


async def prompt_to_continue(session: OpenSession, prompt: str) -> str:
    """Return the prompt to go on with `prompt`: the prompt itself if the model has not reacted to
    it.
    """
    messages = await read_messages(session.session)
    steered = session.steering.sent
    answered = [*messages]
    while _role(answered) == "user" and (
        _content(answered[-1]) in (prompt, *steered) or goes_on(_content(answered[-1]))
    ):
        del answered[-1]
    unanswered = messages[len(answered) :]
    # Messages to the turn.
    kept = [
        message
        for message in unanswered
        if _content(message) != prompt and not goes_on(_content(message))
    ]
    is_unanswered = prompt in map(_content, unanswered)
    if len(kept) < len(unanswered):
        await session.context.set_messages(answered if is_unanswered else [*answered, *kept])
    if is_unanswered:
        session.goes_on = True
        session.steering.following = [*map(_content, kept)]
        return prompt
    # Without the prompt in the conversation, an answer at its end belongs to an earlier one.
    asked = (
        message
        for message in reversed(answered)
        if message.get("role") == "user" and not goes_on(_content(message))
    )
    last = next((text for text in map(_content, asked) if text not in steered), None)
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
            begun = any(later.get("role") in _ANSWERING for later in after)
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
